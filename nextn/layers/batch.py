"""The ragged batch of one forward pass: which tokens, where they stand, what they may see.

Worked example, page_size 4, two spans: request A decodes its position 5 (pages [7, 2]), request B is
fed its first three tokens (page [9]); T is padded from 4 to 8 rows:

    tokens     a5  b0  b1  b2  0 0 0 0
    positions   5   0   1   2  0 0 0 0
    slots      2*4+1  9*4+0  9*4+1  9*4+2  0 0 0 0        page 0 belongs to nobody

A span may be a tree: the root a5 of request A and three drafts, x and y after it, z after y. Its rows lie in
slots one after another, in the order of the rows, and each sees its own ancestors and nothing else:

    tokens     a5  x   y   z        paths    [0]  [0, 1]  [0, 2]  [0, 2, 3]
    positions   5   6   6   7        seen by z: positions 0..4, then the slots of a5, y and z
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nextn.ops.base import KV_BLOCK, ROW_ALIGN, Attention, AttentionGroup, align

SHORT_SPAN = 2 * ROW_ALIGN  # spans up to this share a rectangle with their like
SCORES_LIMIT = 1 << 23  # elements of one group's score matrix; bounds the memory of a long prefill


@dataclass(slots=True)  # frozen ones take three times as long to make, and every step makes many
class Span:
    """A run of tokens of one request at positions start, start + 1, ..., or, with `paths`, nodes of a tree:
    paths[i] are the slots of row i's positions start, start + 1, ..., counted from the request's slot
    `start`, its own the last."""

    tokens: Sequence[int]
    start: int
    pages: Sequence[int]  # page table; covers all slots that are named
    paths: Sequence[Sequence[int]] | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """T rows, the first `rows` of them real. tokens, positions, slots: [T] int64, or int32 where attention is
    paged."""

    rows: int
    tokens: Tensor
    positions: Tensor
    slots: Tensor
    attention: Any  # `Attention`, or what else the backend's `mla_attention` wants
    prompts: Attention | None = None  # long spans apart, for the naive form
    in_prompts: Tensor | None = None  # [T] bool, rows that `prompts` answers for


def slots_of(pages: Sequence[int], page_size: int, length: int) -> np.ndarray:
    """KV slots of positions 0..length-1, int64."""
    need = -(-length // page_size)
    table = np.asarray(pages[:need], dtype=np.int64)
    return (table[:, None] * page_size + np.arange(page_size))[None].reshape(-1)[:length]


def build_batch(
    spans: Sequence[Span], page_size: int, heads: int, device: torch.device, prompts_apart: bool = False
) -> Batch:
    """Lays the spans out one after another. Every span has at least one token. prompts_apart: long
    spans go into `Batch.prompts` instead of `Batch.attention`."""
    runs = [run for span in spans for run in _runs(span, page_size)]
    rows = sum(run.n for run in runs)
    total = align(rows)
    tokens, positions, slots = (np.zeros(total, dtype=np.int64) for _ in range(3))
    tokens[:rows] = [token for span in spans for token in span.tokens]
    at = 0
    for run in runs:
        positions[at : at + run.n] = np.arange(run.start, run.start + run.n)
        slots[at : at + run.n] = run.table[run.start :]
        at += run.n
    tables = [run.table for run in runs]
    token_ids, places, cache_slots = (torch.from_numpy(a).to(device) for a in (tokens, positions, slots))
    short, long = _members(runs, heads)

    def plan(parts: Sequence[_Part]) -> Attention:
        return _plan_attention(parts, tables, positions, heads, device)

    if not (prompts_apart and long):
        return Batch(rows, token_ids, places, cache_slots, plan([*short, *long]))
    apart = np.zeros(total, dtype=bool)
    for _, members in long:
        for _, first, n in members:
            apart[first : first + n] = True
    return Batch(
        rows, token_ids, places, cache_slots, plan(short), plan(long), torch.from_numpy(apart).to(device)
    )


class _Run(NamedTuple):
    """n rows at positions start, start + 1, ...; table [start + n]: the slot of each position they see."""

    n: int
    start: int
    table: np.ndarray


def _runs(span: Span, page_size: int) -> list[_Run]:
    """A span as runs: itself, or, of a tree, each node for itself."""
    n, start = len(span.tokens), span.start
    if span.paths is None:
        return [_Run(n, start, slots_of(span.pages, page_size, start + n))]
    table = slots_of(span.pages, page_size, start + 1 + max(max(path) for path in span.paths))
    return [
        _Run(1, start + len(path) - 1, np.concatenate((table[:start], table[start + np.asarray(path)])))
        for path in span.paths
    ]


# Queries that share a rectangle: key blocks they see, and (run, first row, queries) of each.
_Part = tuple[int, list[tuple[int, int, int]]]


def _members(runs: Sequence[_Run], heads: int) -> tuple[list[_Part], list[_Part]]:
    """Groups short spans (decode, verify) by how many key blocks they see; cuts long ones (prefill)
    into pieces of queries, each against only the keys it can see."""
    short: dict[int, list[tuple[int, int, int]]] = {}
    long: list[_Part] = []
    at = 0
    for i, (n, start, _) in enumerate(runs):
        if n <= SHORT_SPAN:
            short.setdefault(_blocks(start + n), []).append((i, at, n))
        else:
            room = SCORES_LIMIT // (heads * KV_BLOCK * _blocks(start + n))
            step = min(max(room // ROW_ALIGN * ROW_ALIGN, SHORT_SPAN), 256)
            for done in range(0, n, step):
                take = min(step, n - done)
                long.append((_blocks(start + done + take), [(i, at + done, take)]))
        at += n
    return list(short.items()), long


def _plan_attention(
    parts: Sequence[_Part],
    tables: Sequence[np.ndarray],
    positions: np.ndarray,
    heads: int,
    device: torch.device,
) -> Attention:
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
        for j, (i, first, n) in enumerate(members):
            row_index[j, :n] = np.arange(first, first + n)
            row_index[j, n:] = first
            table = tables[i][:s]
            slot_index[j, : len(table)] = table
            # Keys that nobody sees are multiplied by 0, and 0 * NaN is NaN: they are to be the request's own.
            slot_index[j, len(table) :] = table[0]
            back[first : first + n] = offset + j * q + np.arange(n)
        hidden = np.arange(s) > positions[row_index][:, :, None, None]
        groups.append(
            AttentionGroup(
                (b, q, s),
                torch.from_numpy(row_index.reshape(-1)).to(device),
                torch.from_numpy(slot_index.reshape(-1)).to(device),
                torch.from_numpy(hidden).to(device),
            )
        )
        offset += b * q
    return Attention(groups, torch.from_numpy(back).to(device))


def _blocks(length: int) -> int:
    return -(-length // KV_BLOCK)
