"""Which rows of which tensor of a GGUF file a tensor of a checkpoint is.

GGUF stacks a layer's experts in one tensor, and llama.cpp wants some rows in another order. Here a tensor of
the file is a matrix, of all but its last axis and the last.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from nextn.gguf.header import Tensor

MOST = 1 << 20  # names; DeepSeek-V3 has 46,000


@dataclass(frozen=True)
class Rows:
    """`count` rows of a tensor from `first` on; of a vector, its values. heads: if not 0, the rows of each of
    so many heads stand in the order of interleaved rotary pairs (see `row_in_file`)."""

    tensor: str
    first: int
    count: int
    heads: int = 0

    def row_in_file(self, row: int) -> int:
        """Of the checkpoint's row, where a head's first half turns with its second, in the file, where row 2i
        turns with row 2i + 1.

        >>> [Rows("blk.0.attn_q.weight", 0, 12, heads=2).row_in_file(i) for i in range(6)]
        [0, 2, 4, 1, 3, 5]
        """
        if not self.heads:
            return self.first + row
        half = self.count // self.heads // 2
        head, within = divmod(row, 2 * half)
        side, pair = divmod(within, half)
        return self.first + head * 2 * half + 2 * pair + side


@dataclass(frozen=True)
class KeyValueUp:
    """DeepSeek's kv_b_proj [heads * (nope + v), rank], from what llama.cpp makes of it: keys, [heads, rank,
    nope], and values, [heads, v, rank]."""

    keys: str
    values: str
    heads: int


Source = Rows | KeyValueUp


def sources(
    tensors: Mapping[str, Tensor],
    names: Mapping[str, str],
    experts: int = 0,
    heads: Mapping[str, int] = {},
) -> dict[str, Source]:
    """By the checkpoint's name; what has none there keeps its own.

    names: the file's names to the checkpoint's, both with {layer}. One with {expert} too stands for the
    slices of a tensor, so many as `experts`; ONE|OTHER for two of them, one behind the other in each slice.
    heads: by the file's template, see `Rows`. Raises ValueError for more slices than any model has.
    """
    found: dict[str, Source] = {}
    for name, tensor in tensors.items():
        template, layer = _template(name, names)
        if template is None:
            found[name] = Rows(name, 0, tensor.rows)
            continue
        parts = names[template].replace("{layer}", layer).split("|")
        if "{expert}" not in parts[0]:
            (one,) = parts
            found[one] = Rows(name, 0, tensor.rows, heads.get(template, 0))
            continue
        count = tensor.rows // max(1, experts) // len(parts)
        if len(found) + experts * len(parts) > MOST:
            raise ValueError(f"more than {MOST} matrices of {experts} experts in each layer")
        for expert in range(experts):
            for i, part in enumerate(parts):
                first = (expert * len(parts) + i) * count
                found[part.replace("{expert}", str(expert))] = Rows(name, first, count)
    return found


def _template(name: str, names: Mapping[str, str]) -> tuple[str | None, str]:
    """(which of the names it is, its layer)."""
    if name in names:
        return name, ""
    layer = re.match(r"blk\.(\d{1,6})\.", name)
    if layer is None:
        return None, ""
    template = "blk.{layer}." + name[layer.end() :]
    return (template, layer[1]) if template in names else (None, "")
