"""Reads the tensors of GGUF files, one by one, under a checkpoint's names.

Blocks of few bits are returned as stored (`Stored`); each expert is a slice of a stacked tensor. The files
are read with plain reads, as safetensors files are (`nextn.models.safetensors_reader` says why). A tensor
owns its bytes, and the system can drop its cached pages of the file.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType

import torch
from torch import Tensor

from nextn.checkpoint_error import CheckpointError
from nextn.gguf.architectures import architecture
from nextn.gguf.header import Tensor as FileTensor
from nextn.gguf.names import KeyValueUp, Rows, Source
from nextn.gguf.parts import Parts, read_parts
from nextn.gguf.types import BLOCKS
from nextn.models.memory import read_fresh
from nextn.models.safetensors_reader import TensorInfo
from nextn.ops.stored import Format, Stored
from nextn.ops.widen import widened

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True)
class _Place:
    """The place of a tensor: its description, its source, and the file's tensors with its rows (two, if it is
    stored in halves)."""

    info: TensorInfo
    source: Source
    tensors: tuple[FileTensor, ...]
    paths: tuple[Path, ...]  # files of `tensors`: two halves may be in two parts of the model


def open_gguf(files: Sequence[Path]) -> list[GgufFile]:
    """All files of a model, as context managers that open them. Raises CheckpointError, which names the file
    and the tensor."""
    try:
        stats = tuple((f, s.st_size, s.st_mtime_ns) for f, s in ((f, f.stat()) for f in files))
    except OSError as e:
        raise CheckpointError(f"{e.filename} cannot be read: {e.strerror}") from e
    return [GgufFile(path, places) for path, places in zip(files, _places(stats), strict=True)]


@functools.lru_cache(4)  # the files are opened several times while an engine starts
def _places(stats: tuple[tuple[Path, int, int], ...]) -> list[Mapping[str, _Place]]:
    """One map per file: the checkpoint's name -> place, in file order."""
    parts = read_parts(stats[0][0])
    where = {name: i for i, header in enumerate(parts.headers) for name in header.tensors}
    if [header.path for header in parts.headers] != [path for path, *_ in stats]:
        raise CheckpointError(f"{stats[0][0]}: its parts have changed since they were listed")
    found: list[dict[str, _Place]] = [{} for _ in parts.headers]
    try:
        sources = architecture(parts.meta).tensors(parts.meta, parts.tensors)
    except CheckpointError:
        raise
    except ValueError as e:
        raise CheckpointError(f"{parts.meta.path}: {e}") from e
    for name, source in sources.items():
        first = source.keys if isinstance(source, KeyValueUp) else source.tensor
        found[where[first]][name] = _place(parts, name, source)
    return [
        MappingProxyType(dict(sorted(places.items(), key=lambda item: item[1].info.start)))
        for places in found
    ]


def _place(parts: Parts, name: str, source: Source) -> _Place:
    if isinstance(source, KeyValueUp):
        both = parts.tensors[source.keys], parts.tensors[source.values]
        paths = tuple(parts.part_of(t.name).path for t in both)
        return _Place(_info_of_both(parts, name, source, *both), source, both, paths)
    tensor = parts.tensors[source.tensor]
    size = (tensor.end - tensor.start) // tensor.rows
    start = tensor.start + source.first * size
    shape = (source.count,) if len(tensor.shape) == 1 else (source.count, tensor.shape[-1])
    kind, path = tensor.type.name, parts.part_of(tensor.name).path
    format = Format(kind, tensor.type.values) if kind in BLOCKS and len(shape) == 2 else None
    if source.heads and source.count % (2 * source.heads):
        raise CheckpointError(
            f"{path}: tensor {tensor.name!r} has {source.count} rows, not a multiple of "
            f"2 x {source.heads} heads"
        )
    info = TensorInfo(name, kind, shape, start, start + source.count * size, format)
    return _Place(info, source, (tensor,), (path,))


def _info_of_both(
    parts: Parts, name: str, source: KeyValueUp, keys: FileTensor, values: FileTensor
) -> TensorInfo:
    """The TensorInfo of kv_b_proj, which is read from two tensors; `start` is that of the keys. If the file
    has it in a few bits, it is read widened. It still has a `format`, so that native kernels hold it in
    int8."""
    heads, rank = source.heads, values.shape[-1]
    file = parts.part_of(keys.name).path
    for t, count in ((keys, heads * rank), (values, values.rows)):
        if len(t.shape) == 1 or t.rows != count or not heads or t.rows % heads:
            raise CheckpointError(
                f"{file}: tensor {t.name!r} is {list(t.shape)}, which does not fit {heads} heads and "
                f"{rank} latent values"
            )
        if t.type.name not in (*DTYPES, *BLOCKS):
            raise CheckpointError(
                f"{file}: tensor {t.name!r} is of type {t.type.name}, which nextn does not read"
            )
    few = [t.type for t in (keys, values) if t.type.name in BLOCKS]
    same = keys.type == values.type and not few
    size = keys.end - keys.start + values.end - values.start
    return TensorInfo(
        name,
        keys.type.name if same else "F32",
        (heads * keys.shape[-1] + values.rows, rank),
        keys.start,
        keys.start + size,
        Format(few[0].name, few[0].values) if few else None,
    )


class GgufFile:
    """One file; as a context manager, it opens the file. tensors: in file order."""

    def __init__(self, path: Path, places: Mapping[str, _Place]) -> None:
        self.path, self._places = path, places
        self.tensors = {name: place.info for name, place in places.items()}

    def __enter__(self) -> GgufFile:
        with ExitStack() as stack:
            paths = {self.path, *(path for place in self._places.values() for path in place.paths)}
            try:
                self._files = {p: stack.enter_context(open(p, "rb", buffering=0)) for p in paths}
            except OSError as e:
                raise CheckpointError(f"{e.filename} cannot be read: {e.strerror}") from e
            self._open = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def read(self, name: str, rows: range | None = None) -> Tensor | Stored:
        """One tensor, or these rows of its first axis: `Stored` if the file has blocks of few bits. For
        kv_b_proj, f32 in this case."""
        place = self._places[name]
        rows = range(place.info.shape[0]) if rows is None else rows
        if isinstance(place.source, KeyValueUp):
            return self._kv_up(place, rows)
        return self._rows(place, place.source, rows)

    def _rows(self, place: _Place, source: Rows, rows: range) -> Tensor | Stored:
        if not source.heads:
            return self._read(place, 0, source.first + rows.start, len(rows), place.info.shape[1:])
        numbers = [source.row_in_file(row) for row in rows]
        first, last = min(numbers, default=0), max(numbers, default=-1)
        found = self._read(place, 0, first, last + 1 - first, place.info.shape[1:])
        order = [number - first for number in numbers]
        return found.take(order) if isinstance(found, Stored) else found[order]

    def _kv_up(self, place: _Place, rows: range) -> Tensor:
        """Rows of kv_b_proj, [nope + v, rank] per head. In the file keys are [heads, rank, nope], values
        [heads, v, rank]."""
        keys, values = place.tensors
        assert isinstance(place.source, KeyValueUp)
        heads, rank = place.source.heads, place.info.shape[1]
        nope, v = keys.shape[-1], values.rows // heads
        each, dtype = nope + v, DTYPES[place.info.dtype]
        first, last = rows.start // each, -(-rows.stop // each)
        count = last - first
        key = _plain(self._read(place, 0, first * rank, count * rank, (nope,)), dtype).view(count, rank, nope)
        value = _plain(self._read(place, 1, first * v, count * v, (rank,)), dtype).view(count, v, rank)
        both = torch.cat((key.transpose(1, 2), value), 1).view(-1, rank)
        return both[rows.start - first * each : rows.stop - first * each]

    def _read(
        self, place: _Place, which: int, first: int, count: int, columns: tuple[int, ...]
    ) -> Tensor | Stored:
        """`count` rows of place.tensors[which], from `first` on. Raises CheckpointError for a short file."""
        tensor, file = place.tensors[which], self._files[place.paths[which]]
        size = (tensor.end - tensor.start) // tensor.rows
        raw = read_fresh(file, tensor.start + first * size, count * size)
        if raw is None:
            raise CheckpointError(f"{place.paths[which]}: cut short inside tensor {tensor.name!r}")
        kind = tensor.type.name
        if kind in DTYPES:
            return raw.view(DTYPES[kind]).view(count, *columns)
        return Stored(Format(kind, tensor.type.values), (count, *columns), raw.view(count, size))  # type: ignore[arg-type]


def _plain(found: Tensor | Stored, dtype: torch.dtype) -> Tensor:
    return widened(found, dtype) if isinstance(found, Stored) else found.to(dtype)
