"""Grouped-query attention against a dense one in f64, and its bits in any company.

The kernel is that of latent attention (test_attention.py); what differs is where an entry has its value and
its key.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.dense_attention import dense_attention, paged, tree_paths
from support.native_kernels import Pool, at_level, built_levels, heads_attention
from torch import Tensor

from nextn.layers.batch import Span
from nextn.ops.cpu.heads import grouped_heads
from nextn.ops.cpu.interface import Heads


def entries(slots: int, of: Heads, kv_heads: int, dim: int, seed: int = 0) -> Tensor:
    """[slots, width] bf16: keys are filled up with zeros, and values with what must not be read."""
    gen = torch.Generator().manual_seed(seed)
    cache = torch.randn(slots, kv_heads, of.stride, generator=gen)
    cache[:, :, of.columns : of.key_at] = torch.nan
    cache[:, :, of.key_at + dim :] = 0
    return cache.flatten(1).bfloat16()


def queries(rows: int, of: Heads, dim: int, seed: int = 0) -> Tensor:
    """[groups, rows, heads, key] bf16."""
    gen = torch.Generator().manual_seed(seed + rows)
    q = torch.randn(of.groups, rows, of.heads, of.key, generator=gen) * dim**-0.5
    q[..., dim:] = 0
    return q.bfloat16()


LENGTHS = [(0, 1), (2, 3), (254, 4), (256, 1), (520, 20)]


@pytest.mark.parametrize(
    ("kv_heads", "share", "dim"),
    [(2, 4, 64), (1, 1, 80), (3, 1, 96), (8, 2, 128), (1, 17, 128), (2, 7, 256), (5, 3, 15)],
)
def test_against_dense(pool: Pool, kv_heads: int, share: int, dim: int) -> None:
    page, of = 4, grouped_heads(kv_heads, share, dim, dim)
    spans, slots = paged(LENGTHS, page)
    spans[2] = replace(spans[2], paths=tree_paths(4, 1))
    spans[4] = replace(spans[4], paths=tree_paths(20, 2))
    cache = entries(slots, of, kv_heads, dim)
    q = queries(sum(rows for _, rows in LENGTHS), of, dim)
    got = heads_attention(pool, cache, page, spans, q, of)
    for head, entry in enumerate(cache.split(of.stride, dim=1)):
        want, bound = dense_attention(entry, page, spans, q[head], dim, of.key_at)
        assert ((got[:, head] - want).abs() <= bound).all(), head


def test_heads_of_a_rank(pool: Pool) -> None:
    """A rank may have some heads of a key-value head, or those of a few; their bits are those among all."""
    kv_heads, share, dim = 2, 6, 32
    whole = grouped_heads(kv_heads, share, dim, dim)
    spans, slots = paged(LENGTHS, 4)
    cache = entries(slots, whole, kv_heads, dim)
    q = queries(sum(rows for _, rows in LENGTHS), whole, dim)
    want = heads_attention(pool, cache, 4, spans, q, whole).flatten(1, 2)
    by_head = q.transpose(1, 2).flatten(0, 1)  # [all heads, rows, key]
    for each, first in ((6, 6), (4, 8), (3, 3), (1, 11)):
        heads = {6: 6, 4: 2, 3: 3, 1: 1}[each]  # of a group: the largest divisor of both
        own = Heads(each // heads, heads, first // heads, share // heads, *list_of(whole)[4:])
        mine = by_head[first : first + each].unflatten(0, (own.groups, heads)).transpose(1, 2).contiguous()
        got = heads_attention(pool, cache, 4, spans, mine, own).flatten(1, 2)
        assert torch.equal(got, want[:, first : first + each]), (each, first)


def list_of(heads: Heads) -> list[int]:
    return [getattr(heads, name) for name, _ in Heads._fields_]


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    groups=st.sampled_from([(1, 1), (2, 1), (3, 2), (2, 5), (1, 16), (8, 4)]),
    lengths=st.lists(st.tuples(st.integers(0, 560), st.integers(1, 30)), min_size=1, max_size=4),
    threads=st.sampled_from([1, 2, 5, 30]),
    page=st.sampled_from([1, 4, 16]),
    dim=st.sampled_from([16, 32, 80]),
    seed=st.integers(0, 100),
)
def test_a_query_has_the_same_bits_in_any_company(
    groups: tuple[int, int],
    lengths: list[tuple[int, int]],
    threads: int,
    page: int,
    dim: int,
    seed: int,
) -> None:
    """All spans at once on some threads, one of them as a tree; each in two parts, then row by row."""
    of = grouped_heads(*groups, dim, dim)
    with at_level(built_levels()[seed % len(built_levels())]), Pool(threads) as pool, Pool(1) as one:
        spans, slots = paged(lengths, page, seed)
        cache = entries(slots, of, groups[0], dim, seed)
        q = queries(sum(rows for _, rows in lengths), of, dim, seed)
        as_tree = [
            replace(s, paths=[list(range(i + 1)) for i in range(len(s.tokens))])
            if i == seed % len(spans)
            else s
            for i, s in enumerate(spans)
        ]
        together = heads_attention(pool, cache, page, spans, q, of)
        assert torch.equal(heads_attention(pool, cache, page, as_tree, q, of), together)
        row = 0
        for span in spans:
            n = len(span.tokens)
            mine, want = q[:, row : row + n], together[row : row + n]
            cut = seed % n
            for which in (one, pool):
                parts = [(0, cut), (cut, n)] if cut else [(0, n)]
                for a, b in (*parts, (0, 1), (n - 1, n)):
                    part = Span([0] * (b - a), span.start + a, span.pages)
                    got = heads_attention(which, cache, page, [part], mine[:, a:b].contiguous(), of)
                    assert torch.equal(got, want[a:b])
            row += n
