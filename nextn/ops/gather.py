"""Gathers queries and their keys into rectangles, for attention in plain torch.

Short spans (decode, verify) with the same number of key blocks share a rectangle. Long spans (prefill) are
cut into pieces of queries, each with only the keys that it may attend to. A node of a tree is a separate run.

Shapes: B runs of a group, Q queries and S keys per run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from nextn.ops.base import KV_BLOCK, ROW_ALIGN, Spans, align

SHORT_SPAN = 2 * ROW_ALIGN  # maximum rows of a span that shares a rectangle
SCORES_LIMIT = 1 << 23  # maximum elements of a group's score matrix; limits the memory of a long prefill


def is_long(rows: int) -> bool:
    """Whether a span of this many rows is too long to share a rectangle."""
    return rows > SHORT_SPAN


@dataclass(frozen=True, slots=True)
class Group:
    """A rectangle. size: (B, Q, S).

    rows: [B * Q] int64, row of the batch (padding queries repeat a real row)
    slots: [B * S] int64, KV slot of each absolute position (padding positions: the slot of the first one)
    hidden: [B, Q, 1, S] bool, True if the query must not attend to the key
    """

    size: tuple[int, int, int]
    rows: Tensor
    slots: Tensor
    hidden: Tensor


@dataclass(frozen=True, slots=True)
class Gathered:
    """All groups. back: [T] int64, index of row t in the groups' concatenated queries; 0 if it is in none."""

    groups: Sequence[Group]
    back: Tensor


class _Run(NamedTuple):
    """n rows from row `first` on, at positions start, start + 1, ... table [start + n]: the slot of each
    position that they attend to."""

    first: int
    n: int
    start: int
    table: np.ndarray


def gathered(spans: Spans, heads: int, prompts: bool = False, caches: int = 1) -> Gathered:
    """The rectangles of all rows. If some rows use naive attention: only theirs (`prompts`), or only the
    others'. heads: query heads that share a set of keys. caches: number of such sets."""
    key = gathered, heads, prompts, caches
    if key not in spans.computed:
        positions = spans.positions.cpu().numpy()
        runs = _runs(spans, positions)
        if spans.prompts is not None:
            runs = [run for run in runs if is_long(run.n) == prompts]
        members, device = _members(runs, heads, caches), spans.positions.device
        spans.computed[key] = _gathered(members, positions, heads, device)
    found: Gathered = spans.computed[key]
    return found


def _runs(spans: Spans, positions: np.ndarray) -> list[_Run]:
    """One run for each span; for a tree, one for each node."""
    page, table, cu_paths = spans.page_size, spans.table.cpu().numpy(), spans.cu_paths.tolist()
    runs = []
    first = 0
    for end, start, page_at in zip(
        spans.cu_rows[1 : spans.count + 1].tolist(),
        spans.starts.tolist(),
        spans.page_at.tolist(),
        strict=False,
    ):
        if end == first:
            continue
        tree = cu_paths[first] < cu_paths[first + 1]
        length = start if tree else start + end - first
        pages = table[page_at : page_at - (-length // page)]
        slots = (pages[:, None] * page + np.arange(page)).reshape(-1)[:length]
        if not tree:
            runs.append(_Run(first, end - first, start, slots))
        for row in range(first, end) if tree else ():
            path = table[cu_paths[row] : cu_paths[row + 1]]
            runs.append(_Run(row, 1, int(positions[row]), np.concatenate((slots, path))))
        first = end
    return runs


# Queries that share a rectangle: their number of key blocks, and (run, first row, queries) of each run.
_Part = tuple[int, list[tuple[_Run, int, int]]]


def _members(runs: Sequence[_Run], heads: int, caches: int) -> list[_Part]:
    short: dict[int, list[tuple[_Run, int, int]]] = {}
    long: list[_Part] = []
    for run in runs:
        first, n, start, _ = run
        if not is_long(n):
            short.setdefault(_blocks(start + n), []).append((run, first, n))
            continue
        room = SCORES_LIMIT // (heads * caches * KV_BLOCK * _blocks(start + n))
        step = min(max(room // ROW_ALIGN * ROW_ALIGN, SHORT_SPAN), 256)
        for done in range(0, n, step):
            take = min(step, n - done)
            long.append((_blocks(start + done + take), [(run, first + done, take)]))
    return [*short.items(), *long]


def _gathered(parts: Sequence[_Part], positions: np.ndarray, heads: int, device: torch.device) -> Gathered:
    # Q is padded so that Q * heads is a multiple of ROW_ALIGN.
    quantum = ROW_ALIGN // math.gcd(ROW_ALIGN, heads)
    groups = []
    back = np.zeros(len(positions), dtype=np.int64)
    offset = 0
    for blocks, members in parts:
        b, s = len(members), blocks * KV_BLOCK
        q = align(max(n for _, _, n in members), quantum)
        row_index = np.zeros((b, q), dtype=np.int64)
        slot_index = np.zeros((b, s), dtype=np.int64)
        for j, (run, first, n) in enumerate(members):
            row_index[j, :n] = np.arange(first, first + n)
            row_index[j, n:] = first
            table = run.table[:s]
            slot_index[j, : len(table)] = table
            # Hidden keys are multiplied by 0, and 0 * NaN is NaN. So padding uses a slot of this request.
            slot_index[j, len(table) :] = table[0]
            back[first : first + n] = offset + j * q + np.arange(n)
        hidden = np.arange(s) > positions[row_index][:, :, None, None]
        rows, slots = (torch.from_numpy(a.reshape(-1)).to(device) for a in (row_index, slot_index))
        groups.append(Group((b, q, s), rows, slots, torch.from_numpy(hidden).to(device)))
        offset += b * q
    return Gathered(groups, torch.from_numpy(back).to(device))


def _blocks(length: int) -> int:
    return -(-length // KV_BLOCK)
