"""The relay: the state that a step on the device leaves there for the next step. Each request has a row of
numbers and a page table. So a step can be launched before the host has read the result of the previous one.

A request has a slot from its first such step until it is dropped. Slot 0 belongs to no request. It is like a
request that has ended, with page 0 as all its pages, and pads batches.

Everything is int32: seeds and streams are stored as 32-bit words, f32 numbers as their bit patterns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from nextn.draft import MAX_DRAFTS
from nextn.ops.philox import MASK
from nextn.request import GREEDY_BELOW, SamplingParams
from nextn.sampling.row_draws import Choosing, RowDraws

ENDS = 72  # tokens that may end a request: 64 of its own, and the model's
# Columns. Then come the drafts, then the tokens that end the request, padded with -1.
LENGTH, ROOT, DRAFTS, ENDED, LIMIT = range(5)
SEED_LOW, SEED_HIGH, STREAM, TEMPERATURE, TOP_P, MIN_P, TOP_K, FILTERS = range(5, 13)
TOKENS = 13
END_IDS = TOKENS + MAX_DRAFTS
WIDTH = END_IDS + ENDS


class Start(NamedTuple):
    """Where a request continues: number of committed tokens, the last of them, its draft, whether it
    ended."""

    length: int
    root: int
    draft: Sequence[int]
    ended: bool = False


def choosing_of(params: SamplingParams, vocabulary: int) -> Choosing:
    if params.temperature < GREEDY_BELOW:
        return Choosing.GREEDY
    filters = 0 < params.top_k < vocabulary or params.top_p < 1.0 or params.min_p > 0.0
    return Choosing.FILTERED if filters else Choosing.SAMPLED


def relay_row(
    start: Start, limit: int, params: SamplingParams, end_ids: Sequence[int], vocabulary: int
) -> np.ndarray:
    """[WIDTH] int32."""
    row, p = np.zeros(WIDTH, np.int32), params
    choosing = choosing_of(params, vocabulary)
    row[:5] = start.length, start.root, len(start.draft), start.ended, limit
    words, numbers = row.view(np.uint32), row.view(np.float32)
    words[SEED_LOW], words[SEED_HIGH], words[STREAM] = p.seed & MASK, p.seed >> 32, p.stream
    numbers[TEMPERATURE] = 0.0 if choosing == Choosing.GREEDY else p.temperature
    numbers[TOP_P], numbers[MIN_P] = p.top_p, p.min_p
    row[TOP_K] = p.top_k if 0 < p.top_k < vocabulary else vocabulary
    row[FILTERS] = choosing == Choosing.FILTERED
    row[TOKENS : TOKENS + len(start.draft)] = start.draft
    row[END_IDS:] = -1
    row[END_IDS : END_IDS + len(end_ids)] = end_ids
    return row


def null_row() -> np.ndarray:
    return relay_row(Start(0, 0, (), ended=True), 0, SamplingParams(temperature=0.0), (), 1)


class Relay:
    """rows: [slots, WIDTH]. pages: [slots, most_pages]."""

    def __init__(self, slots: int, most_pages: int, device: torch.device) -> None:
        """slots: without slot 0."""
        row = torch.from_numpy(null_row()).to(device)
        self.rows = row.repeat(slots + 1, 1)
        self.pages = torch.zeros(slots + 1, most_pages, dtype=torch.int32, device=device)

    @property
    def most_pages(self) -> int:
        return self.pages.shape[1]

    def write(self, slots: Tensor, rows: Tensor) -> None:
        """slots [n] int64, rows [n * WIDTH]."""
        self.rows.index_copy_(0, slots, rows.view(-1, WIDTH))

    def write_pages(self, places: Tensor, pages: Tensor) -> None:
        """places [n] int64: slot * most_pages + index in the page table; pages [n]."""
        self.pages.view(-1).index_copy_(0, places, pages)


class Committed(NamedTuple):
    """What a step committed for each request. tokens [R, 1 + MAX_DRAFTS]: the first `taken` are committed.
    verified: number of drafts that it had. failed: no token could be chosen, although it had no drafts."""

    tokens: Tensor
    taken: Tensor
    verified: Tensor
    failed: Tensor
    ended: Tensor


class Requests:
    """The rows of a step's R requests, converted: int64 numbers, and the parameters of choices."""

    def __init__(self, rows: Tensor) -> None:
        """rows: [R, WIDTH] int32, a copy."""
        self.rows, numbers = rows, rows.long()
        self.length, self.root, self.count = numbers[:, LENGTH], numbers[:, ROOT], numbers[:, DRAFTS]
        self.alive, self.limit = numbers[:, ENDED] == 0, numbers[:, LIMIT]
        self.drafts, self.end_ids = numbers[:, TOKENS:END_IDS], numbers[:, END_IDS:]

        def number(column: int) -> Tensor:
            return rows[:, column].contiguous().view(torch.float32)

        self.draws = RowDraws(
            numbers[:, SEED_LOW] & MASK, numbers[:, SEED_HIGH] & MASK, numbers[:, STREAM] & MASK, self.length,
            number(TEMPERATURE), number(TOP_P), number(MIN_P), numbers[:, TOP_K], numbers[:, FILTERS] > 0,
        )  # fmt: skip

    def after(self, done: Committed, count: Tensor, drafts: Tensor) -> Tensor:
        """The rows after the step. drafts [R, MAX_DRAFTS]: the first `count` are to be verified."""
        rows, taken = self.rows, done.taken
        last = done.tokens.gather(1, (taken - 1).clamp(min=0)[:, None])[:, 0]
        root = torch.where(taken > 0, last, self.root)
        head = torch.stack((self.length + taken, root, count, done.ended.long()), dim=1).int()
        return torch.cat((head, rows[:, LIMIT:TOKENS], drafts.int(), rows[:, END_IDS:]), dim=1)
