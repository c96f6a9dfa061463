"""The ragged batch for kernels that go through page tables: one array of numbers, one copy to the device.

    tokens | positions | slots | page_at | fork | path_at | table        six of T numbers, then the tables

table: a 0 first, which is the page that padding rows lie in, then each span's pages, and of a tree's node
the slots of its path. `nextn.ops.base.PagedAttention` says how they are read. Worked example, page_size 4:
request A decodes position 5 (pages [7, 2]); of request B a tree, a root and one draft after it, at 2 and 3
(page [9]):

    tokens     a5  b2  b3         page_at    1   3   3
    positions   5   2   3         fork       -   2   2        - : no position is past it
    slots       9  38  39         path_at    0   4   5
    table       0 | 7 2 | 9 | 38 | 38 39
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import repeat

import numpy as np
import torch
from torch import Tensor

from nextn.layers.batch import Batch, Span
from nextn.ops.base import PagedAttention

FIELDS = 6
NO_FORK = 2**31 - 1


class PagedBatch:
    """rows: of the spans. total: with padding. longest: no row sees more positions. packed: int32, CPU.
    tokens: if given, [rows] int32 on the device, instead of the spans' own."""

    tokens: Tensor | None = None

    def __init__(self, spans: Sequence[Span], page_size: int, total: int | None = None) -> None:
        """total: rows with padding, at least those of the spans; by default no padding."""
        tokens, positions, slots, page_at, fork, path_at = fields = [array("i") for _ in range(FIELDS)]
        table = array("i", (0,))
        for span in spans:
            n, start = len(span.tokens), span.start
            last = start + (n - 1 if span.paths is None else max(map(max, span.paths)))
            pages = span.pages[: last // page_size + 1]
            tokens.extend(span.tokens)
            page_at.extend(repeat(len(table), n))
            table.extend(pages)
            if span.paths is None:
                positions.extend(range(start, start + n))
                slots.extend(
                    [pages[p // page_size] * page_size + p % page_size for p in range(start, start + n)]
                )
                fork.extend(repeat(NO_FORK, n))
                path_at.extend(repeat(0, n))
                continue
            fork.extend(repeat(start, n))
            for path in span.paths:
                positions.append(start + len(path) - 1)
                path_at.append(len(table))
                table.extend(
                    [pages[(start + i) // page_size] * page_size + (start + i) % page_size for i in path]
                )
                slots.append(table[-1])
        self.spans = spans
        self.rows, self.page_size = len(tokens), page_size
        self.total = self.rows if total is None else total
        self.longest = max(positions) + 1
        packed = np.zeros(FIELDS * self.total + len(table), dtype=np.int32)
        for i, field in enumerate(fields):
            packed[i * self.total : i * self.total + self.rows] = field
        packed[4 * self.total + self.rows : 5 * self.total] = NO_FORK
        packed[FIELDS * self.total :] = table
        self.packed = torch.from_numpy(packed)

    def on(self, numbers: Tensor, longest: int | None = None) -> Batch:
        """As the layers want it, with `packed` or room for it on the device; padding rows are rows like the
        others. longest: see PagedAttention."""
        tokens, positions, slots, page_at, fork, path_at = (
            numbers[i * self.total : (i + 1) * self.total] for i in range(FIELDS)
        )
        table = numbers[FIELDS * self.total :]
        attention = PagedAttention(
            positions, page_at, fork, path_at, table, self.page_size, longest or self.longest
        )
        return Batch(self.total, tokens, positions, slots, attention)
