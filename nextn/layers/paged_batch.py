"""The ragged batch for kernels that go through page tables: one array of numbers, one copy to the device.

    tokens | positions | slots | page_at | fork | path_at | table        six of T numbers, then the tables

table: a 0 first, which is the page that padding rows lie in, then each span's pages, then of each node of a
tree the slots of its path. `nextn.ops.base.PagedAttention` says how they are read. Worked example, page_size
4: request A decodes position 5 (pages [7, 2]); of request B a tree, a root and one draft after it, at 2 and
3 (page [9]):

    tokens     a5  b2  b3         page_at    1   3   3
    positions   5   2   3         fork       -   2   2        - : no position is past it
    slots       9  38  39         path_at    0   4   5
    table       0 | 7 2 | 9 | 38 | 38 39
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

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
        self.spans, self.page_size = spans, page_size
        tokens, table = array("i"), array("i", (0,))
        counts, starts, pages_at = [], [], []  # of each span
        for span in spans:
            counts.append(len(span.tokens))
            starts.append(span.start)
            pages_at.append(len(table))
            tokens.extend(span.tokens)
            last = span.start + (counts[-1] - 1 if span.paths is None else max(map(max, span.paths)))
            table.extend(span.pages[: last // page_size + 1])
        self.rows = rows = len(tokens)
        self.total = rows if total is None else total
        first = np.cumsum(counts) - counts
        fields = np.zeros((FIELDS, self.total), dtype=np.int32)
        _, positions, slots, page_at, fork, path_at = fields
        fields[0, :rows] = tokens
        page_at[:rows] = np.repeat(pages_at, counts)
        positions[:rows] = np.arange(rows) + np.repeat(starts - first, counts)
        page = np.array(table)[page_at[:rows] + positions[:rows] // page_size]
        slots[:rows] = page * page_size + positions[:rows] % page_size
        fork[:] = NO_FORK
        for span, at in zip(spans, first.tolist(), strict=True):
            for row, path in enumerate(span.paths or (), start=at):
                path_at[row], fork[row] = len(table), span.start
                places = [span.start + i for i in path]
                table.extend([span.pages[p // page_size] * page_size + p % page_size for p in places])
                positions[row], slots[row] = span.start + len(path) - 1, table[-1]
        self.longest = int(positions.max()) + 1
        self.packed = torch.from_numpy(np.concatenate((fields.reshape(-1), np.array(table))))

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
