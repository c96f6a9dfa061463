"""Presents a checkpoint's packed matrices (compressed-tensors, GPTQ, AWQ) under the names of plain ones.

    views = packed_views(files, cfg.quantization)

model.layers.0.mlp.up_proj.qweight, .qzeros and .scales appear as model.layers.0.mlp.up_proj.weight, in the
place of .qweight. All headers are checked first. If a part of a matrix is missing or does not fit the others,
the error names the matrix.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from torch import Tensor

from nextn.families.files import CheckpointError
from nextn.families.quantization import PackedCodes
from nextn.models.packed_layouts import LAYOUTS, PackedMatrix, Part
from nextn.models.safetensors_reader import SafetensorsFile, TensorInfo
from nextn.ops.stored import Stored


class PackedView:
    """A file in which packed matrices replace their parts. A matrix is in the file that has its codes."""

    def __init__(
        self, file: SafetensorsFile, infos: Iterable[TensorInfo], matrices: Mapping[str, PackedMatrix]
    ) -> None:
        self._file, self._matrices = file, matrices
        self.tensors = {info.name: info for info in infos}

    @property
    def path(self) -> Path:
        return self._file.path

    def read(self, name: str, rows: range | None = None) -> Tensor | Stored:
        matrix = self._matrices.get(name)
        return self._file.read(name, rows) if matrix is None else matrix.read(rows)


def packed_views(files: Sequence[SafetensorsFile], packed: PackedCodes) -> list[PackedView]:
    """One view per file. A matrix's parts may be in several files. Raises CheckpointError if a part is
    missing or does not fit the others, or if a file also has the plain matrix."""
    layout = LAYOUTS[packed.method]
    where = {name: file for file in files for name in file.tensors}
    taken: set[str] = set()
    matrices: dict[str, PackedMatrix] = {}  # by the name of their codes
    for name in where:
        if not name.endswith("." + layout.codes):
            continue
        module = name.removesuffix(layout.codes)
        found = {
            end: Part(where[module + end], where[module + end].tensors[module + end])
            for end in (layout.codes, layout.scale, layout.zero, *layout.others)
            if module + end in where
        }
        weight = module + "weight"
        if weight in where:
            raise CheckpointError(
                f"{where[name].path}: {name} and {weight} are both there; remove one of them"
            )
        matrices[name] = layout(weight, found, packed)
        taken.update(module + end for end in found)
    views = []
    for file in files:
        here = {name: matrices[name] for name in file.tensors if name in matrices}
        infos = (
            here[name].info if name in here else info
            for name, info in file.tensors.items()
            if name in here or name not in taken
        )
        views.append(PackedView(file, infos, {matrix.info.name: matrix for matrix in here.values()}))
    return views
