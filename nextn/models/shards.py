"""Opens the files with a checkpoint's weights: model.safetensors, an index and its shards, or GGUF files. It
also opens files of MTP layers that no index names, like SGLang's `maybe_add_mtp_safetensors`, which knows
two."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torch import Tensor

from nextn.families.files import (
    CheckpointError,
    checkpoint_folder,
    contents,
    first_names,
    gguf_files,
    read_json,
)
from nextn.families.quantization import PackedCodes, Quantization
from nextn.models.gguf_reader import open_gguf
from nextn.models.packed import packed_views
from nextn.models.safetensors_reader import SafetensorsFile, TensorInfo
from nextn.ops.stored import Stored

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MTP = "mtp*.safetensors"  # further files with MTP layers, such as mtp.safetensors, mtp-1-of-1.safetensors


class TensorFile(Protocol):
    """An open file. tensors: in the order in which reading is fastest."""

    @property
    def path(self) -> Path: ...

    @property
    def tensors(self) -> Mapping[str, TensorInfo]: ...

    def read(self, name: str, rows: range | None = None) -> Tensor | Stored:
        """One tensor, or these rows of its first axis, as stored: `Stored` if its TensorInfo has a format."""


@dataclass(frozen=True)
class Shards:
    """All files of a checkpoint, open and with checked headers. where: the file of each tensor, by name."""

    folder: Path
    files: Sequence[TensorFile]
    where: Mapping[str, TensorFile]

    def info(self, name: str) -> TensorInfo:
        return self.where[name].tensors[name]


@contextmanager
def open_shards(path: str | Path, quantization: Quantization | None = None) -> Iterator[Shards]:
    """Opens every file of a checkpoint. A matrix that is packed as `quantization` says appears as one tensor,
    under the name of the plain one. Raises CheckpointError, which names the file and the tensor."""
    folder = checkpoint_folder(path)
    gguf = gguf_files(folder)
    indexed = None if gguf else _index(folder)
    names = sorted(set(indexed.values())) if indexed is not None else [SINGLE]
    names += sorted(file.name for file in folder.glob(MTP) if file.name not in names)
    with ExitStack() as stack:
        plain: list[SafetensorsFile] = []
        files: Sequence[TensorFile] = plain
        if gguf:
            files = [stack.enter_context(file) for file in open_gguf(gguf)]
        else:
            plain += (stack.enter_context(SafetensorsFile(folder / name)) for name in names)
        where: dict[str, TensorFile] = {}
        for file in files:
            for name in file.tensors:
                if name in where:
                    raise CheckpointError(
                        f"{folder}: tensor {name} is in {where[name].path.name} and in {file.path.name}"
                    )
                where[name] = file
        for name, file_name in (indexed or {}).items():
            if name not in where or where[name].path.name != file_name:
                raise CheckpointError(
                    f"{folder / INDEX}: tensor {name} should be in {file_name}, which does not hold it"
                )
        if isinstance(quantization, PackedCodes):
            views = packed_views(plain, quantization)
            yield Shards(folder, views, {name: view for view in views for name in view.tensors})
        else:
            yield Shards(folder, files, where)


def _index(folder: Path) -> dict[str, str] | None:
    """The index's map from tensor to file. None if model.safetensors is the only file; an empty map if there
    are only files of MTP layers. Raises CheckpointError if a file is missing or the index is invalid."""
    index = folder / INDEX
    if not index.exists():
        if not (folder / SINGLE).is_file():
            if any(folder.glob(MTP)):
                return {}
            raise CheckpointError(
                f"{folder}: neither {SINGLE} nor {INDEX} is in the folder; {contents(folder)}"
            )
        return None
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index}: weight_map is {weight_map!r}; it must map tensor names to files")
    for name, file in weight_map.items():
        if not isinstance(file, str) or Path(file).name != file:
            raise CheckpointError(
                f"{index}: tensor {name} is in {file!r}; it must be the name of a file beside the index"
            )
    files = sorted(set(weight_map.values()))
    absent = [name for name in files if not (folder / name).is_file()]
    if absent:
        raise CheckpointError(f"{index} names {len(absent)} missing file(s): {first_names(absent)}")
    if (folder / SINGLE).exists() and SINGLE not in files:
        raise CheckpointError(f"{folder} holds {SINGLE} and {INDEX}; remove the one that is out of date")
    return weight_map
