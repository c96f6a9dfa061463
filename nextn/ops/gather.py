"""Attention in plain torch: queries gathered into rectangles with their keys.

Short spans (decode, verify) that see equally many blocks of keys share a rectangle, long ones (prefill) are
cut into pieces of queries, each against only the keys it can see. A node of a tree is a run of its own.

Shapes: B runs of a group, Q queries, S keys of each.
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

SHORT_SPAN = 2 * ROW_ALIGN  # spans up to this share a rectangle with their like
SCORES_LIMIT = 1 << 23  # elements of one group's score matrix; bounds the memory of a long prefill


def is_long(rows: int) -> bool:
    """Of a span: is it none that shares a rectangle?"""
    return rows > SHORT_SPAN


@dataclass(frozen=True, slots=True)
class Group:
    """size: B, Q, S.

    rows: [B * Q] int64, row of the batch (padding queries repeat a real row)
    slots: [B * S] int64, KV slot of each absolute position (padding positions: the first one's)
    hidden: [B, Q, 1, S] bool, True where the query must not see the key
    """

    size: tuple[int, int, int]
    rows: Tensor
    slots: Tensor
    hidden: Tensor


@dataclass(frozen=True, slots=True)
class Gathered:
    """All groups. back: [T] int64, where in the groups' concatenated queries row t is; 0 of rows in none."""

    groups: Sequence[Group]
    back: Tensor


class _Run(NamedTuple):
    """n rows from `first` on, at positions start, start + 1, ...; table [start + n]: the slot of each
    position they see."""

    first: int
    n: int
    start: int
    table: np.ndarray


def gathered(spans: Spans, heads: int, prompts: bool = False, caches: int = 1) -> Gathered:
    """Of all rows, or, where some go the naive way, of those (`prompts`) or of the others. heads: that meet
    the same keys. caches: sets of keys, each for so many heads."""
    key = gathered, heads, prompts, caches
    if key not in spans.kept:
        positions = spans.positions.cpu().numpy()
        runs = _runs(spans, positions)
        if spans.prompts is not None:
            runs = [run for run in runs if is_long(run.n) == prompts]
        spans.kept[key] = _gathered(_members(runs, heads, caches), positions, heads, spans.positions.device)
    found: Gathered = spans.kept[key]
    return found


def _runs(spans: Spans, positions: np.ndarray) -> list[_Run]:
    """Every span, or, of a tree, each node for itself."""
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


# Queries that share a rectangle: key blocks they see, and (run, first row, queries) of each.
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
    # Queries come in multiples that make Q * heads a multiple of ROW_ALIGN.
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
            # Keys that nobody sees are multiplied by 0, and 0 * NaN is NaN: they are to be the request's own.
            slot_index[j, len(table) :] = table[0]
            back[first : first + n] = offset + j * q + np.arange(n)
        hidden = np.arange(s) > positions[row_index][:, :, None, None]
        rows, slots = (torch.from_numpy(a.reshape(-1)).to(device) for a in (row_index, slot_index))
        groups.append(Group((b, q, s), rows, slots, torch.from_numpy(hidden).to(device)))
        offset += b * q
    return Gathered(groups, torch.from_numpy(back).to(device))


def _blocks(length: int) -> int:
    return -(-length // KV_BLOCK)
