"""Reads matrices [n outputs, k inputs] that compressed-tensors, GPTQ or AWQ packed into int32 words.

    compressed-tensors  weight_packed [n, k / 8]      nibble i of a word: input 8 w + i
                        weight_scale [n, groups]
                        weight_zero_point [n / 8, groups]  nibble i: output 8 w + i; may be absent: 8
                        weight_shape [2]              n, k
    GPTQ                qweight [k / 8, n]            nibble i: input 8 w + i
                        scales [groups, n]
                        qzeros [groups, n / 8]        nibble i: output 8 w + i; version 1 has each minus 1
                        g_idx [k]                     each input's group; may be absent: in order
    AWQ                 qweight [k, n / 8]            nibble i: output 8 w + (0, 2, 4, 6, 1, 3, 5, 7)[i]
                        scales [groups, n]
                        qzeros [groups, n / 8]        nibbles in the order of qweight

weight = scale * (code - zero). Nibble i is bits 4 i to 4 i + 3. With 8 bits (not AWQ), bytes replace nibbles.
Version 1 subtracts the ones from whole words, so a zero point 0 borrows from its neighbour. Therefore the
ones are added back to whole words too.

Sources: compressed_tensors/compressors/pack_quantized, AutoGPTQ's qlinear_tritonv2.py, GPTQModel's
convert_gptq_v1_to_v2_format_module, AutoAWQ's modules/linear/gemm.py.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from nextn.families.files import CheckpointError
from nextn.families.quantization import AWQ, COMPRESSED_TENSORS, GPTQ, PackedCodes
from nextn.models.safetensors_reader import SafetensorsFile, TensorInfo
from nextn.ops.stored import INT4, Format, Stored

FLOATS = ("F16", "BF16", "F32")
AWQ_PLACES = [0, 4, 1, 5, 2, 6, 3, 7]  # the nibbles of a word that have outputs 0, 1, ...


class Part(NamedTuple):
    """One of the tensors that make up a packed matrix."""

    file: SafetensorsFile
    info: TensorInfo

    def read(self, rows: range | None = None) -> Tensor:
        return self.file.read(self.info.name, rows)


class PackedMatrix(ABC):
    """A packed matrix. It reads as `Stored` if it has 4 bits, whole groups and inputs in order; else as f32.

    codes, scale, zero, others: the ends of its parts' names, after the module's name."""

    codes: ClassVar[str]
    scale: ClassVar[str]
    zero: ClassVar[str]
    others: ClassVar[tuple[str, ...]] = ()

    def __init__(self, name: str, parts: Mapping[str, Part], packed: PackedCodes) -> None:
        """parts: the parts that exist, by `codes`, `scale` and so on. Raises CheckpointError if one is
        missing or has a wrong shape or dtype."""
        self.name, self._parts, self.packed = name, parts, packed
        for end in self._required():
            if end not in parts:
                raise self._error(f"{self._part_name(end)} is missing")
        for end in (self.codes, self.scale):
            if len(parts[end].info.shape) != 2:
                raise self._error(
                    f"{self._part_name(end)} is {list(parts[end].info.shape)}; it must have two axes"
                )
        self.n, self.k = self._sizes()
        if not self.n or not self.k:
            raise self._error(
                f"{self._part_name(self.codes)} is {list(parts[self.codes].info.shape)}; its matrix "
                f"[{self.n}, {self.k}] is empty"
            )
        self.bits, self.group = self._scheme()
        groups = -(-self.k // self.group)
        for end, (shape, dtypes) in self._wanted(groups).items():
            if end in parts:
                self._check(parts[end].info, shape, dtypes)
        why = self._why_widened()
        zeros = self.zero in parts and not packed.symmetric
        format = None if why else Format(INT4, self.group, zeros)
        size = sum(part.info.end - part.info.start for part in parts.values())
        self.info = TensorInfo(name, "F32" if why else INT4, (self.n, self.k), 0, size, format, why)

    def read(self, rows: range | None = None) -> Tensor | Stored:
        """The whole matrix, or these rows. Raises CheckpointError for zero points that `packed` excludes."""
        rows = range(self.n) if rows is None else rows
        data, scale, zero = self._data(rows), self._scale(rows).float(), self._zeros(rows)
        if zero is not None and self.packed.symmetric:
            middle = 1 << (self.bits - 1)
            if bool((zero != middle).any()):
                raise self._error(
                    f"{self._part_name(self.zero)} has zero points other than {middle}, but sym is true"
                )
            zero = None
        index = self._groups()
        if self.info.format is not None:
            return Stored(self.info.format, (len(rows), self.k), data, scale.contiguous(), zero)
        codes = (nibbles(data) if self.bits == 4 else data)[:, : self.k].float()
        codes -= (1 << (self.bits - 1)) if zero is None else zero.float()[:, index]
        return codes.mul_(scale[:, index])

    @abstractmethod
    def _sizes(self) -> tuple[int, int]:
        """(n, k), from the shapes of the parts."""

    @abstractmethod
    def _shapes(self, bits: int, groups: int) -> dict[str, tuple[int, int]]:
        """Shapes of codes and scale."""

    @abstractmethod
    def _zero_shape(self, groups: int) -> tuple[int, int]:
        """Shape of the zero points."""

    @abstractmethod
    def _data(self, rows: range) -> Tensor:
        """[rows, k * bits / 8 or more] uint8: codes in order; of 4 bits, an even input's in the low half."""

    @abstractmethod
    def _zeros(self, rows: range) -> Tensor | None:
        """[rows, groups] uint8; None: all are the middle code."""

    def _scale(self, rows: range) -> Tensor:
        """[rows, groups]. The part is [groups, n], except in CompressedTensors."""
        return self._parts[self.scale].read()[:, rows.start : rows.stop].t()

    def _wanted(self, groups: int) -> dict[str, tuple[tuple[int, ...], tuple[str, ...]]]:
        """(shape, dtypes) that each part must have if it exists."""
        shapes = self._shapes(self.bits, groups)
        return {
            self.codes: (shapes[self.codes], ("I32",)),
            self.scale: (shapes[self.scale], FLOATS),
            self.zero: (self._zero_shape(groups), ("I32",)),
        }

    def _required(self) -> tuple[str, ...]:
        return (self.scale, self.zero)

    def _groups(self) -> Tensor:
        """[k]: each input's group."""
        return torch.arange(self.k) // self.group

    def _why_widened(self) -> str:
        """Why the matrix cannot be `Stored`; "" if it can."""
        if self.bits != 4:
            return f"{self.bits} bits"
        return f"{self.k} inputs in groups of {self.group}" if self.k % self.group or self.k % 2 else ""

    def _scheme(self) -> tuple[int, int]:
        """(bits, inputs of a group): the first of the config's schemes that fits the parts' shapes."""
        codes, scale = (self._parts[end].info.shape for end in (self.codes, self.scale))
        for bits, group in self.packed.schemes:
            group = group or self.k
            if self._fits(bits, -(-self.k // group)):
                return bits, group
        asked = " or ".join(
            f"{b} bits, {'one group' if g == 0 else f'groups of {g}'}" for b, g in self.packed.schemes
        )
        raise self._error(
            f"{self.codes} {list(codes)} and {self.scale} {list(scale)} do not fit {self.k} inputs and "
            f"quantization_config's {asked}"
        )

    def _fits(self, bits: int, groups: int) -> bool:
        wanted = self._shapes(bits, groups)
        return all(self._parts[end].info.shape == shape for end, shape in wanted.items())

    def _check(self, info: TensorInfo, shape: tuple[int, ...], dtypes: tuple[str, ...]) -> None:
        if info.dtype not in dtypes:
            raise self._error(f"{info.name} is {info.dtype} (supported: {', '.join(dtypes)})")
        if info.shape != shape:
            raise self._error(f"{info.name} is {list(info.shape)}, its matrix requires {list(shape)}")

    def _error(self, what: str) -> CheckpointError:
        return CheckpointError(
            f"{self._parts[self.codes].file.path}: {self.name} is packed as {self.packed.method}: {what}"
        )

    def _part_name(self, end: str) -> str:
        return self.name.removesuffix("weight") + end

    def _per_word(self) -> int:
        return 32 // self.bits

    def _words(self, count: int) -> int:
        return -(-count // self._per_word())


class CompressedTensors(PackedMatrix):
    codes, scale, zero, others = "weight_packed", "weight_scale", "weight_zero_point", ("weight_shape",)

    def _required(self) -> tuple[str, ...]:
        return (self.scale, "weight_shape")  # zero points are optional: the default is the middle code

    def _sizes(self) -> tuple[int, int]:
        shape = self._parts["weight_shape"]
        self._check(shape.info, (2,), ("I64", "I32"))
        n, k = shape.read().tolist()
        if (
            n != self._parts[self.codes].info.shape[0]
            or not 0 < k <= 8 * self._parts[self.codes].info.shape[1]
        ):
            raise self._error(
                f"weight_shape is [{n}, {k}], which does not fit "
                f"weight_packed, {list(self._parts[self.codes].info.shape)}"
            )
        return n, k

    def _shapes(self, bits: int, groups: int) -> dict[str, tuple[int, int]]:
        return {self.codes: (self.n, -(-self.k * bits // 32)), self.scale: (self.n, groups)}

    def _zero_shape(self, groups: int) -> tuple[int, int]:
        return self._words(self.n), groups

    def _data(self, rows: range) -> Tensor:
        return as_bytes(self._parts[self.codes].read(rows))[:, : -(-self.k * self.bits // 8)]

    def _scale(self, rows: range) -> Tensor:
        return self._parts[self.scale].read(rows)

    def _zeros(self, rows: range) -> Tensor | None:
        if self.zero not in self._parts:
            return None
        each = self._per_word()
        words = self._parts[self.zero].read(range(rows.start // each, self._words(rows.stop)))
        return _numbers(words.t(), self.bits, rows, each)


class Gptq(PackedMatrix):
    codes, scale, zero, others = "qweight", "scales", "qzeros", ("g_idx",)

    def _sizes(self) -> tuple[int, int]:
        words, n = self._parts[self.codes].info.shape
        if "g_idx" in self._parts:
            return n, math.prod(self._parts["g_idx"].info.shape)
        return n, words * 32 // self.packed.schemes[0][0]

    def _shapes(self, bits: int, groups: int) -> dict[str, tuple[int, int]]:
        return {self.codes: (-(-self.k * bits // 32), self.n), self.scale: (groups, self.n)}

    def _zero_shape(self, groups: int) -> tuple[int, int]:
        return groups, self._words(self.n)

    def _wanted(self, groups: int) -> dict[str, tuple[tuple[int, ...], tuple[str, ...]]]:
        return super()._wanted(groups) | {"g_idx": ((self.k,), ("I32",))}

    def _why_widened(self) -> str:
        ordered = not self.packed.reordered or bool((self._groups() == super()._groups()).all())
        return super()._why_widened() if ordered else "inputs out of order (desc_act)"

    def _groups(self) -> Tensor:
        ordered = super()._groups()
        if "g_idx" not in self._parts:
            return ordered
        index = self._parts["g_idx"].read().long()
        low, high, count = int(index.min()), int(index.max()), -(-self.k // self.group)
        if low < 0 or high >= count:
            raise self._error(f"g_idx has group numbers {low} to {high}; there are {count} groups")
        if not self.packed.reordered and not torch.equal(index, ordered):
            raise self._error("g_idx assigns inputs to groups out of order, but desc_act is not true")
        return index

    def _data(self, rows: range) -> Tensor:
        words = self._parts[self.codes].read()[:, rows.start : rows.stop]
        return as_bytes(words.t())[:, : -(-self.k * self.bits // 8)]

    def _zeros(self, rows: range) -> Tensor | None:
        each = self._per_word()
        words = self._parts[self.zero].read()[:, rows.start // each : self._words(rows.stop)]
        if self.packed.minus_one:
            words = words + sum(1 << self.bits * i for i in range(each))
        return _numbers(words, self.bits, rows, each)


class Awq(PackedMatrix):
    codes, scale, zero = "qweight", "scales", "qzeros"

    def _sizes(self) -> tuple[int, int]:
        k, words = self._parts[self.codes].info.shape
        return 8 * words, k

    def _shapes(self, bits: int, groups: int) -> dict[str, tuple[int, int]]:
        return {self.codes: (self.k, self.n // 8), self.scale: (groups, self.n)}

    def _zero_shape(self, groups: int) -> tuple[int, int]:
        return groups, self.n // 8

    def _data(self, rows: range) -> Tensor:
        codes = self._outputs(self.codes, rows)
        return codes[:, 0::2] | codes[:, 1::2] << 4

    def _zeros(self, rows: range) -> Tensor | None:
        return self._outputs(self.zero, rows)

    def _outputs(self, end: str, rows: range) -> Tensor:
        """[rows, first axis of the part]: the part's nibbles for these outputs."""
        words = self._parts[end].read()[:, rows.start // 8 : -(-rows.stop // 8)]
        found = nibbles(as_bytes(words)).view(*words.shape, 8)[:, :, AWQ_PLACES]
        first = rows.start % 8
        return found.reshape(len(words), -1)[:, first : first + len(rows)].t().contiguous()


LAYOUTS: dict[str, type[PackedMatrix]] = {COMPRESSED_TENSORS: CompressedTensors, GPTQ: Gptq, AWQ: Awq}


def as_bytes(words: Tensor) -> Tensor:
    """[a, b] int32 -> [a, 4 b] uint8."""
    return words.contiguous().view(-1).view(torch.uint8).view(len(words), 4 * words.shape[1])


def nibbles(data: Tensor) -> Tensor:
    """[.., n] uint8 -> [.., 2 n]: the low half of each byte, then its high half."""
    return torch.stack((data & 15, data >> 4), -1).flatten(-2)


def _numbers(words: Tensor, bits: int, rows: range, each: int) -> Tensor:
    """words [groups, W] int32, with `each` numbers a word, from the word of the first row on ->
    [rows, groups] uint8."""
    data = as_bytes(words)
    found = nibbles(data) if bits == 4 else data
    first = rows.start % each
    return found[:, first : first + len(rows)].t().contiguous()
