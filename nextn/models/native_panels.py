"""Allocates the native kernels' weights, and decides which rows of a checkpoint's tensors go into them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from torch import Tensor

from nextn.distributed.expert_share import ExpertShare
from nextn.distributed.group import bounds
from nextn.families.config import ModelConfig
from nextn.families.files import CheckpointError
from nextn.ops.cpu.coded import kind_of
from nextn.ops.cpu.interface import BF16, E4M3, INT8, KINDS, WAYS
from nextn.ops.cpu.weights import Arena, PackedWeight, norm_weight
from nextn.ops.stored import FP8, INT4, Format, Stored


class NativePanels:
    """The weights of one rank. They are zeros until `place` has been called for every tensor.

    quantize: format that the layers' matrices are converted to, INT8 or INT4. stored: formats of the tensors
    that the checkpoint stores in e4m3 blocks or in a few bits, by name. A matrix whose parts all have the
    same format keeps it; their names are in `as_stored`, and `place` takes them undequantized. `quantize`
    does not apply to a matrix that is stored in a few bits.
    """

    def __init__(
        self,
        cfg: ModelConfig,
        quantize: Format | None,
        stored: Mapping[str, Format] | None,
        rank: int,
        size: int,
        share: ExpertShare | None,
        way: Callable[[int], int],
    ) -> None:
        """rank, size: this rank, and how many compute a step together; each holds its own outputs of every
        product. share: this rank's routed experts, if a world of ranks shares the target's. way: kind of
        weights -> how its products are computed, see `nextn.ops.cpu.ways`."""
        self.rank, self.size, self.share = rank, size, share
        self.cfg, self._stored, self._quantize = cfg, stored or {}, quantize
        self._int8_default = False  # True: matrices not yet in one byte or less are converted to int8
        self._way = way
        self.as_stored: frozenset[str] = frozenset()
        self.int8_fallbacks: list[str] = []  # in INT8, not INT4: their inputs are not whole groups
        self._places: dict[str, Callable[..., None]] = {}
        self.rows: dict[str, range] = {}  # by name: the rows of the tensor that `place` takes
        self._arena = Arena()
        self.packed: list[PackedWeight] = []
        self._plain: list[Tensor] = []  # norms and biases: the kernels hold pointers to them

    def part(self, n: int, unit: int) -> range:
        """The part of n outputs that this rank computes."""
        return part_of(n, unit, self.rank, self.size)

    def place(self, name: str, tensor: Tensor | Stored, scale: Tensor | None = None) -> None:
        """Copies one tensor into the weights; it is whole, or has only the rows in `rows`. scale: for e4m3
        blocks in `as_stored`, one row of block scales per output. Raises CheckpointError if the kernels
        cannot hold the scales of a matrix in a few bits."""
        try:
            self._places[name](tensor, **({} if scale is None else {"scale": scale}))
        except ValueError as e:
            raise CheckpointError(f"{name}: {e}") from e

    @property
    def ways(self) -> dict[str, str]:
        """Formats whose products are not computed in the level's default way: format -> way."""
        chosen = {int(packed.kind): int(packed.struct.way) for packed in self.packed}
        return {KINDS[kind]: WAYS[way] for kind, way in sorted(chosen.items()) if way}

    def matrix(
        self, n_out: int, n_in: int, names: Collection[str] = (), kind: int | None = None, members: int = 1
    ) -> PackedWeight:
        """Allocates a matrix. names: the checkpoint's tensors that go into it. kind: of the matrix, unless
        those are stored in a few bits; None: the layers' kind."""
        format = self._common_format(names)
        few = None if format is None or format.name == FP8 else kind_of(format, n_in)
        block = 0
        if format is not None and few is not None:
            kind, block = few, format.group
            self.as_stored |= frozenset(names)
        elif kind is None:
            kind, block = self._layer_kind(n_in, format)
            if kind == INT8 and self._quantize is not None and self._quantize.name == INT4:
                self.int8_fallbacks += names
            if kind == E4M3:
                self.as_stored |= frozenset(names)
        packed = PackedWeight(n_out, n_in, kind, members, block, self._arena)
        packed.struct.way = self._way(kind)
        self.packed.append(packed)
        return packed

    def alike(self, names: Collection[str]) -> bool:
        """Whether all these tensors are stored in the same format."""
        return len({self._stored.get(name) for name in names}) == 1

    def _common_format(self, names: Collection[str]) -> Format | None:
        """The format of these tensors, if they all have the same one."""
        return self._stored.get(next(iter(names))) if self.alike(names) else None

    def few_bits(self, name: str) -> bool:
        """Whether this matrix is stored in a few bits, or will be converted to 4 bits."""
        format = self._stored.get(name)
        made = self._quantize
        return (format is not None and format.name != FP8) or (made is not None and made.name == INT4)

    def _layer_kind(self, n_in: int, format: Format | None) -> tuple[int, int]:
        """(kind, block) of a layer's matrix that is not stored in a few bits."""
        if self._quantize is not None:
            made = kind_of(self._quantize, n_in)
            return (INT8, 0) if made is None else (made, self._quantize.group)
        if format is not None and format.name == FP8 and format.group % 2 == 0:
            return E4M3, format.group  # the kernels read inputs in pairs: a pair has to be in one block
        return (INT8, 0) if self._int8_default else (BF16, 0)

    def take(self, name: str, place: Callable[..., None], rows: range | None) -> None:
        """Adds a destination for a tensor. rows: the rows that the rank takes; None: it needs all of them. A
        tensor may have several destinations; all of them take the same rows."""
        before = self._places.get(name)
        self._places[name] = place if before is None else both(before, place)
        if rows is not None and (self.size > 1 or self.share is not None):
            self.rows[name] = rows

    def split(self, name: str, weight: PackedWeight, own: range, **where: Any) -> None:
        """The rank takes the rows `own` of this tensor."""
        self.take(name, rows_of(weight, own, **where), own)

    def vector(self, name: str, n: int) -> int:
        """Allocates a norm's weight or a bias, which this tensor fills. Returns its address."""
        weight = self.zeros(n)
        self._places[name] = partial(copy_to, weight[:n])
        return weight.data_ptr()

    def zeros(self, n: int) -> Tensor:
        """Memory for a norm's weight or a bias: n f32, and zeros up to a multiple of 32."""
        weight = norm_weight(n)
        self._plain.append(weight)
        return weight


def rows_of(weight: PackedWeight, rows: range, **where: Any) -> Callable[..., None]:
    """Returns a function that places these rows of a tensor."""

    def place(tensor: Tensor | Stored, scale: Tensor | None = None) -> None:
        own = some_rows(tensor, rows)
        weight.place(own, scale=None if scale is None else own_rows(scale, rows), **where)

    return place


def some_rows(tensor: Tensor | Stored, rows: range) -> Tensor | Stored:
    """`own_rows` for a matrix in any format."""
    if isinstance(tensor, Stored):
        return tensor if len(tensor) == len(rows) else tensor.rows(rows)
    return own_rows(tensor, rows)


def own_rows(tensor: Tensor, rows: range) -> Tensor:
    """These rows of a tensor. A tensor with exactly as many rows has been cut already."""
    return tensor if len(tensor) == len(rows) else tensor[rows.start : rows.stop]


def part_of(n: int, unit: int, rank: int, size: int) -> range:
    begin, end = bounds(n, size, unit)[rank : rank + 2]
    return range(begin, end)


def both(first: Callable[..., None], second: Callable[..., None]) -> Callable[..., None]:
    def place(*args: Any, **kwargs: Any) -> None:
        first(*args, **kwargs)
        second(*args, **kwargs)

    return place


def nothing(tensor: Tensor | Stored, scale: Tensor | None = None) -> None:
    pass


def copy_to(to: Tensor, tensor: Tensor) -> None:
    to.copy_(tensor)
