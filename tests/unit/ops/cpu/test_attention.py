"""Paged latent attention against a dense one in f64, and its bits in any company."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.dense_attention import dense_attention, entries, paged, tree_paths
from support.native_kernels import Pool, at_level, attention, built_levels
from torch import Tensor

from nextn.layers.batch import Span


def queries(rows: int, heads: int, width: int, sharp: float = 1.0, seed: int = 0) -> Tensor:
    """[rows, heads, width] bf16, scaled so that scores have a standard deviation of `sharp`."""
    gen = torch.Generator().manual_seed(seed + rows)
    return (torch.randn(rows, heads, width, generator=gen) * sharp * width**-0.5).bfloat16()


def check(
    pool: Pool,
    lengths: list[tuple[int, int]],
    *,
    page: int = 4,
    heads: int = 3,
    rank: int = 64,
    width: int = 96,
    sharp: float = 1.0,
    trees: dict[int, list[list[int]]] | None = None,
) -> Tensor:
    """lengths: (start, rows) of each span. trees: the paths of those that are trees."""
    spans, slots = paged(lengths, page, seed=len(lengths))
    spans = [replace(s, paths=(trees or {}).get(i)) for i, s in enumerate(spans)]
    cache = entries(slots, rank, width)
    q = queries(sum(rows for _, rows in lengths), heads, width, sharp)
    got = attention(pool, cache, page, spans, q, rank)
    want, bound = dense_attention(cache, page, spans, q, rank)
    assert ((got - want).abs() <= bound).all()
    return got


@pytest.mark.parametrize(
    "lengths",
    [
        [(0, 1)],
        [(0, 5)],
        [(2, 3), (0, 1), (17, 4)],
        [(255, 1)],  # the last key of a block
        [(256, 1)],  # the first of another
        [(250, 12)],
        [(511, 2), (700, 1), (0, 9)],
        [(0, 300)],
        [(260, 40), (31, 1), (100, 3)],
    ],
    ids=str,
)
def test_against_dense(pool: Pool, lengths: list[tuple[int, int]]) -> None:
    check(pool, lengths)


@pytest.mark.parametrize("page", [1, 3, 16, 256])
def test_page_sizes(pool: Pool, page: int) -> None:
    check(pool, [(page - 1, 2), (2 * page - 1, 1), (2 * page, 1), (0, 3)], page=page)


@pytest.mark.parametrize(("heads", "rank", "width"), [(1, 32, 32), (16, 32, 64), (17, 96, 96), (5, 512, 576)])
def test_shapes(pool: Pool, heads: int, rank: int, width: int) -> None:
    check(pool, [(0, 3), (30, 1), (260, 2)], heads=heads, rank=rank, width=width)


@pytest.mark.parametrize("sharp", [0.0, 10.0, 60.0])
def test_flat_and_sharp_scores(pool: Pool, sharp: float) -> None:
    """All keys alike, and one key that takes all: blocks then lie beyond what exp can tell apart."""
    check(pool, [(0, 4), (600, 2)], sharp=sharp)


def test_keys_far_below_the_best_weigh_nothing(pool: Pool) -> None:
    """Tiny weights would make denormal products, which take CPUs a hundred times as long."""
    rank, width = 64, 96
    (span,), slots = paged([(40, 1)], 4)
    cache, q = entries(slots, rank, width), queries(1, 2, width)
    q[:, :, :rank], q[:, :, rank:] = 0, 10  # scores are those of the part behind the values
    best = span.pages[20 // 4] * 4 + 20 % 4
    value = cache[best, :rank].clone()
    cache[:, :rank], cache[:, rank:] = 3e38, -3
    cache[best, :rank], cache[best, rank:] = value, 3
    got = attention(pool, cache, 4, [span], q, rank)
    assert torch.equal(got[0, 0], value.to(got.dtype))


@pytest.mark.parametrize("start", [0, 20, 40, 300])
@pytest.mark.parametrize("rows", [1, 6])
def test_a_query_that_is_no_number_has_no_answer(pool: Pool, start: int, rows: int) -> None:
    """Whatever stands beside it, which stays as it is."""
    (span,), slots = paged([(start, rows)], 4)
    cache, q = entries(slots, 64, 96), queries(rows, 3, 96)
    before = attention(pool, cache, 4, [span], q, 64)
    q[0] = torch.nan
    after = attention(pool, cache, 4, [span], q, 64)
    assert after[0].isnan().all()
    assert torch.equal(after[1:], before[1:])


@pytest.mark.parametrize("start", [0, 3, 250, 254, 256, 600])
def test_trees(pool: Pool, start: int) -> None:
    for rows, seed in ((1, 0), (8, 1), (13, 2), (80, 3)):
        check(pool, [(start, rows)], trees={0: tree_paths(rows, seed)})


def test_trees_beside_chains(pool: Pool) -> None:
    check(pool, [(254, 5), (10, 3), (0, 9)], trees={0: tree_paths(5, 5), 2: tree_paths(9, 9)})
    check(pool, [(600, 9), (10, 3), (254, 7)], trees={0: tree_paths(9, 5), 2: tree_paths(7, 9)})


@pytest.mark.parametrize("heads", [3, 16])
@pytest.mark.parametrize("start", [0, 5, 250, 253, 255, 256, 257, 300, 509, 512, 767])
def test_a_node_has_the_bits_it_would_have_in_a_chain(pool: Pool, start: int, heads: int) -> None:
    """Its path's entries copied to the slots of a chain: a block of keys may begin anywhere among them. The
    tree's nodes come all at once, and the last of them without the first, on threads that share the blocks of
    keys and on one that goes through all of them."""
    rows, page = 12, 4
    (span,), slots = paged([(start, rows)], page)
    cache, q = entries(slots, 64, 96), queries(rows, heads, 96)
    paths = tree_paths(rows, start)
    tree = replace(span, paths=paths)
    rest = replace(span, tokens=[0] * 5, paths=paths[-5:])
    with Pool(1) as one, Pool(30) as many:
        found = [attention(which, cache, page, [tree], q, 64) for which in (one, pool, many)]
        assert torch.equal(found[1], found[0])
        assert torch.equal(found[2], found[0])
        for which in (one, many):
            assert torch.equal(attention(which, cache, page, [rest], q[-5:], 64), found[0][-5:])

    def slot(at: int) -> int:
        return span.pages[at // page] * page + at % page

    for i, path in enumerate(paths):
        moved = cache.clone()
        for depth, p in enumerate(path):
            moved[slot(start + depth)] = cache[slot(start + p)]
        alone = Span([0], start + len(path) - 1, span.pages)
        assert torch.equal(attention(pool, moved, page, [alone], q[i : i + 1], 64)[0], found[0][i])


def test_rows_beside_the_path_do_not_count(pool: Pool) -> None:
    (span,), slots = paged([(254, 4)], 4)
    cache, q = entries(slots, 32, 64), queries(4, 2, 64)
    tree = [replace(span, paths=[[0], [0, 1], [0, 2], [0, 3]])]
    before = attention(pool, cache, 4, tree, q, 32)
    cache[span.pages[256 // 4] * 4 + 256 % 4] = torch.nan  # row 2
    after = attention(pool, cache, 4, tree, q, 32)
    assert torch.equal(after[[0, 1, 3]], before[[0, 1, 3]])
    assert after[2].isnan().any()


@pytest.mark.parametrize("page", [4, 16, 64])
def test_what_is_not_in_the_context_may_be_nan(pool: Pool, page: int) -> None:
    """Not even what lies behind the last key in its page."""
    spans, slots = paged([(250, 3), (6, 2), (16, 17)], page)
    cache, q = entries(slots, 32, 64), queries(22, 3, 64)
    before = attention(pool, cache, page, spans, q, 32)
    mine = {s.pages[p // page] * page + p % page for s in spans for p in range(s.start + len(s.tokens))}
    cache[[slot for slot in range(slots) if slot not in mine]] = torch.nan
    assert torch.equal(attention(pool, cache, page, spans, q, 32), before)


def test_nothing(pool: Pool) -> None:
    cache = entries(8, 32, 32)
    assert attention(pool, cache, 4, [], queries(0, 2, 32), 32).shape == (0, 2, 32)
    spans = [Span([], 3, [0]), Span([0], 1, [1]), Span([], 0, [])]
    got = attention(pool, cache, 4, spans, queries(1, 2, 32), 32)
    alone = attention(pool, cache, 4, spans[1:2], queries(1, 2, 32), 32)
    assert torch.equal(got, alone)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    heads=st.sampled_from([1, 2, 5, 16]),
    lengths=st.lists(st.tuples(st.integers(0, 560), st.integers(1, 30)), min_size=1, max_size=4),
    threads=st.sampled_from([1, 2, 5, 30]),
    page=st.sampled_from([1, 4, 16]),
    rank=st.sampled_from([32, 96]),
    seed=st.integers(0, 100),
)
def test_a_query_has_the_same_bits_in_any_company(
    heads: int, lengths: list[tuple[int, int]], threads: int, page: int, rank: int, seed: int
) -> None:
    """All spans at once on some threads; each in two parts, then row by row, on one thread and on many."""
    with at_level(built_levels()[seed % len(built_levels())]), Pool(threads) as pool, Pool(1) as one:
        spans, slots = paged(lengths, page, seed)
        cache = entries(slots, rank, rank + 32, seed)
        q = queries(sum(rows for _, rows in lengths), heads, rank + 32, seed=seed)
        together = attention(pool, cache, page, spans, q, rank)
        row = 0
        for span in spans:
            n = len(span.tokens)
            mine, want = q[row : row + n], together[row : row + n]
            cut = seed % n
            for which in (one, pool):
                parts = [(0, cut), (cut, n)] if cut else [(0, n)]
                for a, b in (*parts, (0, 1), (n - 1, n)):
                    part = Span([0] * (b - a), span.start + a, span.pages)
                    assert torch.equal(attention(which, cache, page, [part], mine[a:b], rank), want[a:b])
            row += n
