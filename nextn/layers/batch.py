"""The ragged batch of one forward pass: its tokens, their positions, and the cache slots they attend to.

`PackedBatch` is the layout for all backends, in plain int32 arrays. The native kernels read these arrays
directly; `on` turns them into tensors for the ops (`nextn.ops.base.Spans` describes each array). Worked
example, page_size 4: request A is at position 5 (pages [7, 2]), request B has its first two tokens in this
step (page [9]), request C has a tree, a root at position 2 and two drafts x and y after it (pages [4, 6]).
The rows are padded from 6 to 8:

    row         0    1   2    3   4   5    6  7
    tokens      a5   b0  b1   c2  x   y    0  0
    positions   5    0   1    2   3   3    0  0
    slots       9    36  37   18  19  24   0  0       page 0 belongs to no request
    span_of     0    1   1    2   2   2    3  3       the padding is one more span
    cu_paths    6    6   6    6   7   9    11 11 11   of row t: table[cu_paths[t] : cu_paths[t + 1]]

    span        0  1  2  3
    starts      5  0  2  0
    page_at     1  3  4  0
    cu_rows     0  1  3  6  8                         rows of span s: cu_rows[s] .. cu_rows[s + 1]
    table       0 | 7 2 | 9 | 4 6 | 18 | 18 19 | 18 24

The nodes of a tree are in consecutive slots, in the order in which they were made. Each node attends to the
tokens before the tree and to its own path: y to positions 0 and 1 in page 4, then to slots 18 and 24.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nextn.ops.base import Spans, align
from nextn.ops.gather import is_long


@dataclass(slots=True)  # frozen ones take three times as long to make, and every step makes many
class Span:
    """Tokens of one request at positions start, start + 1, ..., or, with `paths`, nodes of a tree: paths[i]
    are the slots of row i's positions start, start + 1, ..., counted from the request's slot `start`. The
    last of them is the row's own slot."""

    tokens: Sequence[int]
    start: int
    pages: Sequence[int]  # page table; covers all slots of the span
    paths: Sequence[Sequence[int]] | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """The batch for torch layers: T rows, of which the first `rows` are not padding. tokens, positions,
    slots: [T]."""

    rows: int
    tokens: Tensor
    positions: Tensor
    slots: Tensor
    attention: Spans


class PackedBatch:
    """The layout on the host. Every span has at least one token.

    token_ids, starts, page_at, cu_rows, cu_paths, table: the arrays of the worked example, without padding;
    cu_paths is None if no span is a tree. rows: number of rows of the spans. total: with padding. tokens: if
    set, [rows] int32 on the device, used instead of token_ids.
    """

    tokens: Tensor | None = None

    def __init__(self, spans: Sequence[Span], page_size: int, total: int | None = None) -> None:
        """total: number of rows with padding; by default no padding."""
        token_ids, starts, page_at = array("i"), array("i"), array("i")
        cu_rows, table = array("i", (0,)), array("i", (0,))
        trees = False
        for span in spans:  # runs for every request in every step, so it does as little as possible
            token_ids.extend(span.tokens)
            cu_rows.append(len(token_ids))
            starts.append(span.start)
            page_at.append(len(table))
            table.extend(span.pages)
            trees |= span.paths is not None
        self.spans, self.page_size = spans, page_size
        self.token_ids, self.starts, self.page_at, self.cu_rows = token_ids, starts, page_at, cu_rows
        self.cu_paths, self.table = _paths(spans, page_size, table) if trees else None, table
        self.rows = len(token_ids)
        self.total = self.rows if total is None else total

    @cached_property
    def packed(self) -> Tensor:
        """All arrays, with padding, in one int32 tensor on the CPU."""
        rows, total, count, page_size = self.rows, self.total, len(self.spans), self.page_size
        packed = np.zeros(packed_size(total, len(self.table)), dtype=np.int32)
        tokens, positions, slots, span_of, starts, page_at, cu_rows, cu_paths, table = _fields(packed, total)
        tokens[:rows], table[:] = self.token_ids, self.table
        starts[:count], page_at[:count] = self.starts, self.page_at
        cu_rows[: count + 1], cu_rows[count + 1 :] = self.cu_rows, total
        if self.cu_paths is not None:
            cu_paths[: rows + 1], cu_paths[rows + 1 :] = self.cu_paths, self.cu_paths[-1]
        span_of[:] = np.repeat(np.arange(total), np.diff(cu_rows))
        path = np.diff(cu_paths)
        after = np.where(path, path - 1, np.arange(total) - cu_rows[span_of])  # positions after span start
        positions[:rows] = (starts[span_of] + after)[:rows]
        page = table[page_at[span_of] + positions // page_size]
        slots[:] = np.where(path, table[cu_paths[1:] - 1], page * page_size + positions % page_size)
        return torch.from_numpy(packed)

    @cached_property
    def longest(self) -> int:
        """The largest number of positions that a row attends to."""
        if not self.rows:
            return 0
        return int(self.packed[self.total : self.total + self.rows].max()) + 1

    def on(self, numbers: Tensor, longest: int | None = None) -> Batch:
        """The batch for the layers. numbers: `packed` on the device. Padding rows are treated like others.
        longest: see Spans."""
        tokens, positions, slots, span_of, starts, page_at, cu_rows, cu_paths, table = _fields(
            numbers, self.total
        )
        spans = Spans(
            len(self.spans), positions, span_of, starts, page_at, cu_rows, cu_paths, table, self.page_size,
            longest or self.longest,
        )  # fmt: skip
        return Batch(self.total, tokens, positions, slots, spans)


def packed_size(total: int, table: int) -> int:
    """How many numbers a packed batch has. table: length of its `table`."""
    return 8 * total + 2 + table


def _fields(packed: Any, total: int) -> Iterator[Any]:
    """The arrays tokens, positions, slots, span_of, starts, page_at, cu_rows, cu_paths and table."""
    at = 0
    for n in (*[total] * 6, total + 1, total + 1, len(packed) - packed_size(total, 0)):
        yield packed[at : at + n]
        at += n


def _paths(spans: Sequence[Span], page_size: int, table: array[int]) -> array[int]:
    """Appends the path of every row to the table. Returns cu_paths."""
    cu_paths = array("i", (len(table),))
    for span in spans:
        for path in [()] * len(span.tokens) if span.paths is None else span.paths:
            places = [span.start + i for i in path]
            table.extend([span.pages[p // page_size] * page_size + p % page_size for p in places])
            cu_paths.append(len(table))
    return cu_paths


def build_batch(
    spans: Sequence[Span], page_size: int, device: torch.device, prompts_apart: bool = False
) -> Batch:
    """The batch for plain torch: padded to ROW_ALIGN, and int64, the dtype of torch's indices. prompts_apart:
    rows of long spans use the naive form of attention."""
    counts = [len(span.tokens) for span in spans]
    packed = PackedBatch(spans, page_size, align(sum(counts)))
    prompts = None
    if prompts_apart and any(is_long(n) for n in counts):
        counts.append(packed.total - packed.rows)
        prompts = torch.tensor([is_long(n) for n in counts[:-1]] + [False]).repeat_interleave(
            torch.tensor(counts)
        )
        prompts = prompts.to(device)
    batch = packed.on(packed.packed.long().to(device))
    return replace(batch, rows=packed.rows, attention=replace(batch.attention, prompts=prompts))
