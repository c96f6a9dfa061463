"""The ragged batch of one forward pass: which tokens, where they stand, what they may see.

Worked example, page_size 4, two spans: request A decodes its position 5 (pages [7, 2]), request B is
fed its first three tokens (page [9]); T is padded from 4 to 8 rows:

    tokens     a5  b0  b1  b2  0 0 0 0
    positions   5   0   1   2  0 0 0 0
    slots      2*4+1  9*4+0  9*4+1  9*4+2  0 0 0 0        page 0 belongs to nobody
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nextn.ops.base import KV_BLOCK, ROW_ALIGN, Attention, AttentionGroup, align

SCORES_LIMIT = 1 << 23  # elements of one group's score matrix; bounds the memory of a long prefill


@dataclass(frozen=True, slots=True)
class Span:
    """A run of tokens of one request at positions start, start + 1, ..."""

    tokens: Sequence[int]
    start: int
    pages: Sequence[int]  # page table; covers start + len(tokens) slots


@dataclass(frozen=True, slots=True)
class Batch:
    """T rows, the first `rows` of them real. tokens, positions, slots: [T] int64."""

    rows: int
    tokens: Tensor
    positions: Tensor
    slots: Tensor
    attention: Attention


def slots_of(pages: Sequence[int], page_size: int, length: int) -> np.ndarray:
    """KV slots of positions 0..length-1, int64."""
    need = -(-length // page_size)
    table = np.asarray(pages[:need], dtype=np.int64)
    return (table[:, None] * page_size + np.arange(page_size))[None].reshape(-1)[:length]


def build_batch(spans: Sequence[Span], page_size: int, heads: int, device: torch.device) -> Batch:
    """Lays the spans out one after another. Every span has at least one token."""
    lengths = [len(s.tokens) for s in spans]
    rows = sum(lengths)
    total = align(rows)
    tokens, positions, slots = (np.zeros(total, dtype=np.int64) for _ in range(3))
    tables = []
    at = 0
    for span, n in zip(spans, lengths, strict=True):
        table = slots_of(span.pages, page_size, span.start + n)
        tokens[at : at + n] = span.tokens
        positions[at : at + n] = np.arange(span.start, span.start + n)
        slots[at : at + n] = table[span.start :]
        tables.append(table)
        at += n
    attention = _plan_attention(spans, tables, positions, total, heads, device)
    token_ids, places, cache_slots = (torch.from_numpy(a).to(device) for a in (tokens, positions, slots))
    return Batch(rows, token_ids, places, cache_slots, attention)


def _plan_attention(
    spans: Sequence[Span],
    tables: Sequence[np.ndarray],
    positions: np.ndarray,
    total: int,
    heads: int,
    device: torch.device,
) -> Attention:
    """Groups short spans (decode, verify) by how many key blocks they see; cuts long ones (prefill)
    into pieces of queries, each against only the keys it can see."""
    # Queries come in multiples that make Q * heads a multiple of ROW_ALIGN.
    quantum = ROW_ALIGN // np.gcd(ROW_ALIGN, heads)
    short: dict[int, list[tuple[int, int, int]]] = {}  # key blocks -> [(span, first row, queries)]
    pieces: list[tuple[int, list[tuple[int, int, int]]]] = []
    at = 0
    for i, span in enumerate(spans):
        n = len(span.tokens)
        if n <= 2 * ROW_ALIGN:
            short.setdefault(_blocks(span.start + n), []).append((i, at, n))
        else:
            done = 0
            while done < n:
                room = SCORES_LIMIT // (heads * KV_BLOCK * _blocks(span.start + n))
                take = min(n - done, max(align(room - int(quantum) + 1, int(quantum)), int(quantum), 16), 256)
                pieces.append((_blocks(span.start + done + take), [(i, at + done, take)]))
                done += take
        at += n
    groups = []
    back = np.zeros(total, dtype=np.int64)
    offset = 0
    for blocks, members in [*short.items(), *pieces]:
        b, s = len(members), blocks * KV_BLOCK
        q = align(max(n for _, _, n in members), int(quantum))
        row_index = np.zeros((b, q), dtype=np.int64)
        slot_index = np.zeros((b, s), dtype=np.int64)
        last = np.zeros((b, q), dtype=np.int64)
        for j, (i, first, n) in enumerate(members):
            row_index[j, :n] = np.arange(first, first + n)
            row_index[j, n:] = first
            table = tables[i][:s]
            slot_index[j, : len(table)] = table
            last[j] = positions[row_index[j]]
            back[first : first + n] = offset + j * q + np.arange(n)
        hidden = np.arange(s) > last[:, :, None, None]
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
