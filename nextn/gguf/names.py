"""Maps a checkpoint's tensors to rows of a GGUF file's tensors.

GGUF stacks a layer's experts in one tensor, and llama.cpp stores some rows in another order. Here a tensor of
the file counts as a matrix: its last axis is the columns, all other axes together are the rows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from nextn.gguf.header import Tensor

MOST = 1 << 20  # maximum number of names; DeepSeek-V3 has 46,000


@dataclass(frozen=True)
class Rows:
    """`count` rows of a tensor from row `first` on; for a vector, its values. heads: if not 0, the rows of
    each of this many heads are in the order of interleaved rotary pairs (see `row_in_file`)."""

    tensor: str
    first: int
    count: int
    heads: int = 0

    def row_in_file(self, row: int) -> int:
        """Index in the file of a row of the checkpoint. Rotary pairs are rows i and i + half of a head in the
        checkpoint, and rows 2i and 2i + 1 in the file.

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
    """DeepSeek's kv_b_proj [heads * (nope + v), rank], from the two tensors into which llama.cpp splits it:
    keys [heads, rank, nope] and values [heads, v, rank]."""

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
    """The sources by the checkpoint's name. A tensor without such a name keeps its own.

    names: the file's name -> the checkpoint's name, both with {layer}. If the latter has {expert} too, the
    tensor consists of `experts` slices, one per expert. ONE|OTHER: each slice has the rows of ONE, then those
    of OTHER. heads: `Rows.heads` by the file's name. Raises ValueError for more slices than any model has.
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
            raise ValueError(f"{experts} experts in each layer make more than {MOST} matrices")
        for expert in range(experts):
            for i, part in enumerate(parts):
                first = (expert * len(parts) + i) * count
                found[part.replace("{expert}", str(expert))] = Rows(name, first, count)
    return found


def _template(name: str, names: Mapping[str, str]) -> tuple[str | None, str]:
    """(the key of `names` that fits this name, its layer number); None if no key fits."""
    if name in names:
        return name, ""
    layer = re.match(r"blk\.(\d{1,6})\.", name)
    if layer is None:
        return None, ""
    template = "blk.{layer}." + name[layer.end() :]
    return (template, layer[1]) if template in names else (None, "")
