"""Loads a checkpoint's weights, one tensor at a time, and checks that no tensor is missing or unexpected.

    load_checkpoint(
        folder, expected_tensors(cfg, n), model.place,
        quantization=cfg.quantization, shared=shared_tensors(cfg, n), skip_prefixes=nextn_prefixes(cfg, n),
        rows=model.rows(),
    )

All headers are read and compared with the model's tensors before the first tensor is read. So a checkpoint
that does not fit fails at once, with every fault in one message, and leaves no half-filled model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from nextn.families.config import ModelConfig
from nextn.families.files import CheckpointError, first_names
from nextn.families.quantization import Fp8Blocks, Quantization
from nextn.models.finite import non_finite, non_finite_scales, non_finite_stored
from nextn.models.fp8 import SCALE_SUFFIX, dequantize, scale_rows, scale_shape
from nextn.models.names import nextn_prefixes
from nextn.models.safetensors_reader import TensorInfo
from nextn.models.shards import Shards, open_shards
from nextn.ops.stored import FEW_BITS, FP8, Format, Stored
from nextn.ops.widen import widened

PLAIN = ("F32", "BF16", "F16")
ALLOW_NON_FINITE = "--allow-non-finite-weights"
LEFTOVERS = (".rotary_emb.inv_freq",)  # tables that old exporters saved; the config determines them


@dataclass(frozen=True)
class LoadReport:
    """Numbers of files read, of tensors placed and of their stored bytes (scales included), and wall time.
    non_finite: the tensors with NaN or infinite values, and how many of these. widened: the matrices in a few
    bits that were widened, with the reason if it is a property of the file."""

    files: int
    tensors: int
    bytes: int
    seconds: float
    non_finite: tuple[str, ...] = ()
    widened: tuple[str, ...] = ()


@dataclass
class _Faults:
    """The reasons why a checkpoint does not fit, each with the names of its tensors."""

    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    wrong_shape: list[str] = field(default_factory=list)
    wrong_dtype: list[str] = field(default_factory=list)

    def check(self, folder: Path) -> None:
        kinds = {
            "missing": self.missing,
            "unexpected": self.unexpected,
            "of the wrong shape": self.wrong_shape,
            "of the wrong dtype": self.wrong_dtype,
        }
        parts = [f"{len(names)} {kind}: {first_names(names)}" for kind, names in kinds.items() if names]
        if parts:
            raise CheckpointError(f"{folder}: its tensors do not fit its config.json; {'; '.join(parts)}")


def load_checkpoint(
    folder: str | Path,
    expected: Mapping[str, tuple[int, ...]],
    place: Callable[..., object],
    *,
    quantization: Quantization | None = None,
    dtype: torch.dtype = torch.bfloat16,
    shared: Mapping[str, tuple[int, ...]] | None = None,
    skip_prefixes: tuple[str, ...] = (),
    as_stored: Collection[str] = (),
    allow_non_finite: bool = False,
    rows: Mapping[str, range] | None = None,
) -> LoadReport:
    """Calls place(name, tensor) once for every name in `expected`, in file order.

    A tensor is f32, bf16 or f16 as stored, on the CPU. It owns its memory: `place` may keep it.
    With `quantization`, FP8 block weights are dequantized to `dtype`; matrices in a few bits are too. Packed
    codes are one matrix, under the name of the plain one.
    shared: names and shapes that may exist and are not loaded. skip_prefixes: prefixes of names to ignore.
    as_stored: names that are not dequantized. FP8: place(name, e4m3 [N, K], scale [N, blocks of K] f32); a
    few bits: place(name, Stored).
    rows: by name, the rows of the first axis to read and place; the tensor is skipped if the range is empty.
    `expected` has whole shapes.
    Raises CheckpointError for a broken file, and for names that are missing, unexpected, or of a wrong shape
    or dtype. After the last tensor, also for NaN or infinite weights, unless `allow_non_finite`.
    """
    begin = time.perf_counter()
    shared, rows = shared or {}, rows or {}
    assert not expected.keys() & shared.keys(), "a tensor is either loaded or shared"
    with open_shards(folder, quantization) as shards:
        compare(shards, expected, shared, skip_prefixes, quantization)
        weights = _Weights(shards, rows, quantization)
        done = 0
        widened: list[str] = []
        for file in shards.files:
            for name in file.tensors:
                if name not in expected or not len(rows.get(name, range(1))):
                    continue
                if name in as_stored:
                    place(name, *weights.as_stored(name))
                else:
                    info = shards.info(name)
                    if info.format is not None or info.widened:
                        widened.append(f"{name} ({info.widened})" if info.widened else name)
                    place(name, weights.dequantized(name, dtype))
                done += weights.bytes(name)
        found = tuple(weights.non_finite)
        if found and not allow_non_finite:
            raise CheckpointError(
                f"{shards.folder}: {len(found)} tensors with NaN or infinite values: {first_names(found)}; "
                f"the files are damaged; {ALLOW_NON_FINITE} serves the checkpoint anyway"
            )
        seconds = time.perf_counter() - begin
        return LoadReport(len(shards.files), len(expected), done, seconds, found, tuple(widened))


def stored_nextn_layers(folder: str | Path, cfg: ModelConfig) -> int:
    """Number of the config's NextN modules that the files contain, counted from the first.

    It can be smaller than num_nextn_predict_layers: transformers and many converters drop the modules and
    keep the key. A module with only some of its tensors counts, so that loading it names the missing ones.
    """
    if cfg.num_nextn_predict_layers == 0:
        return 0
    with open_shards(folder, cfg.quantization) as shards:
        for k, prefix in enumerate(nextn_prefixes(cfg)):
            if not any(name.startswith(prefix) for name in shards.where):
                return k
    return cfg.num_nextn_predict_layers


def stored_formats(folder: str | Path, quantization: Quantization | None) -> dict[str, Format]:
    """Names of the matrices that the files store in e4m3 blocks or in a few bits, and their formats."""
    with open_shards(folder, quantization) as shards:
        found = {name: info.format for name in shards.where if (info := shards.info(name)).format}
        if isinstance(quantization, Fp8Blocks):
            block = quantization.weight_block_size[1]
            fp8 = (name for name in shards.where if _is_fp8(shards.info(name), quantization))
            found |= {name: Format(FP8, block) for name in fp8}
        return found


def compare(
    shards: Shards,
    expected: Mapping[str, tuple[int, ...]],
    shared: Mapping[str, tuple[int, ...]],
    skip_prefixes: tuple[str, ...],
    quantization: Quantization | None,
) -> None:
    """Raises CheckpointError with every tensor that does not fit. Arguments as in `load_checkpoint`."""
    faults = _Faults(missing=[name for name in expected if name not in shards.where])
    for name in shards.where:
        info = shards.info(name)
        weight = name.removesuffix(SCALE_SUFFIX)
        if name in expected or name in shared:
            shape = expected[name] if name in expected else shared[name]
            if info.shape != shape:
                faults.wrong_shape.append(f"{name} is {list(info.shape)}, the config requires {list(shape)}")
            elif name in expected:
                _check_dtype(shards, info, quantization, faults)
        elif name.startswith(skip_prefixes) or name.endswith(LEFTOVERS):
            continue
        elif weight == name or not (weight in shards.where and _is_fp8(shards.info(weight), quantization)):
            faults.unexpected.append(name)
    faults.check(shards.folder)


def _check_dtype(
    shards: Shards, info: TensorInfo, quantization: Quantization | None, faults: _Faults
) -> None:
    if info.dtype in PLAIN or (info.dtype in FEW_BITS and len(info.shape) == 2):
        return
    if not _is_fp8(info, quantization):
        supported = ", ".join(PLAIN)
        if info.dtype == FP8:
            supported += f"; {FP8} for matrices, with quantization_config in config.json"
        faults.wrong_dtype.append(f"{info.name} is {info.dtype} (supported: {supported})")
        return
    assert isinstance(quantization, Fp8Blocks)
    scale = info.name + SCALE_SUFFIX
    if scale not in shards.where:
        faults.missing.append(scale)
        return
    found, shape = shards.info(scale), scale_shape(info.shape, quantization.weight_block_size)
    if found.shape != shape:
        faults.wrong_shape.append(
            f"{scale} is {list(found.shape)}, its weight's blocks require {list(shape)}"
        )
    elif found.dtype != "F32":
        faults.wrong_dtype.append(f"{scale} is {found.dtype} (supported: F32)")


def _is_fp8(info: TensorInfo, quantization: Quantization | None) -> bool:
    return info.dtype == FP8 and isinstance(quantization, Fp8Blocks) and len(info.shape) == 2


class _Weights:
    """Reads tensors, or their `rows`, and lists those with NaN or infinite values in `non_finite`."""

    def __init__(self, shards: Shards, rows: Mapping[str, range], quantization: Quantization | None) -> None:
        self.shards, self.rows = shards, rows
        blocks = quantization if isinstance(quantization, Fp8Blocks) else Fp8Blocks()
        self.block = blocks.weight_block_size
        self.non_finite: list[str] = []

    def dequantized(self, name: str, dtype: torch.dtype) -> Tensor:
        """A tensor as stored. FP8 blocks and matrices in a few bits are converted to `dtype`."""
        stored = self._read(name, non_finite)
        if isinstance(stored, Stored):
            return widened(stored, dtype)
        if not self._is_fp8(name):
            return stored
        first = self.rows[name].start if name in self.rows else 0
        return dequantize(stored, self._scale(name), self.block, dtype, first)

    def as_stored(self, name: str) -> tuple[Tensor | Stored, ...]:
        """A matrix in a few bits; or one in e4m3, [N, K], and block scales, one row for each of its rows."""
        stored = self._read(name, non_finite)
        if isinstance(stored, Stored):
            return (stored,)
        scale = self._scale(name)
        cut = self.rows[name].start % self.block[0] if name in self.rows else 0
        return stored, scale.repeat_interleave(self.block[0], 0)[cut : cut + len(stored)]

    def bytes(self, name: str) -> int:
        """Number of bytes that are read for a tensor, its scales included."""
        names = (name, name + SCALE_SUFFIX) if self._is_fp8(name) else (name,)
        extents = (self.shards.info(n).extent(self._rows(n)) for n in names)
        return sum(end - start for start, end in extents)

    def _is_fp8(self, name: str) -> bool:
        return self.shards.info(name).dtype == FP8

    def _rows(self, name: str) -> range | None:
        """The rows to read of a tensor, or of a weight's scales; None: all."""
        weight = name.removesuffix(SCALE_SUFFIX)
        if weight == name or weight not in self.rows:
            return self.rows.get(name)
        return scale_rows(self.rows[weight], self.block)

    def _scale(self, name: str) -> Tensor:
        """The block scales of a weight. They may be in another file than the weight."""
        scale = self._read(name + SCALE_SUFFIX, non_finite_scales)
        assert isinstance(scale, Tensor)
        return scale

    def _read(self, name: str, bad_values: Callable[[Tensor], int]) -> Tensor | Stored:
        tensor = self.shards.where[name].read(name, self._rows(name))
        bad = non_finite_stored(tensor) if isinstance(tensor, Stored) else bad_values(tensor)
        if bad:
            self.non_finite.append(f"{name} ({bad} of {tensor.numel()})")
        return tensor
