"""A batch laid out on the device has the arrays of the one that the host lays out."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from nextn.layers.batch import PackedBatch, Span
from nextn.layers.device_batch import Paged, lay_out, one_row_spans

PAGE, PAGES = 4, 6  # of each request
TABLE = torch.zeros(6, PAGES, dtype=torch.int32)
TABLE[1:] = torch.arange(1, 1 + 5 * PAGES).view(5, PAGES).flip(1)


def paged():
    return Paged(TABLE.view(-1), PAGE, 512, torch.int32)


spans = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 15)), min_size=1, max_size=5)


@given(spans, st.integers(0, 7))
def test_arrays_are_those_of_the_host(spans, padding):
    counts, starts = torch.tensor(spans).T
    slots = torch.arange(1, 1 + len(spans))
    total = int(counts.sum()) + padding
    if not total:
        return
    got = lay_out(counts, starts, slots * PAGES, total, 4, paged())
    values = torch.arange(4 * len(spans)).view(-1, 4) + 1
    some = [Span(values[i, :n].tolist(), at, TABLE[1 + i].tolist()) for i, (n, at) in enumerate(spans) if n]
    want = PackedBatch(some, PAGE, total)
    tokens, positions, place = want.packed[: 3 * total].view(3, total)
    batch = got.batch(got.of_rows(values))
    assert batch.tokens.equal(tokens)
    assert batch.positions.equal(positions)
    assert batch.slots.equal(place)
    assert got.real.sum() == want.rows
    spans_of, theirs = batch.attention, want.on(want.packed).attention
    for row in range(total):  # span numbers differ where spans without rows are left out
        mine, other = spans_of.span_of[row], theirs.span_of[row]
        for name in ("cu_rows", "starts"):
            assert getattr(spans_of, name)[mine] == getattr(theirs, name)[other]
        assert spans_of.cu_rows[mine + 1] == theirs.cu_rows[other + 1]
        pages = [
            each.table[each.page_at[n] :][:3].tolist() for each, n in ((spans_of, mine), (theirs, other))
        ]
        assert pages[0] == pages[1] or row >= want.rows
    assert not spans_of.cu_paths.any()


def test_one_row_spans():
    active, tokens = torch.tensor([True, False, True]), torch.tensor([7, -1, 9])
    page_at = torch.tensor([PAGES, 10**6, 2 * PAGES])
    batch = one_row_spans(active, torch.tensor([5, 99, 0]), page_at, tokens, paged())
    assert batch.tokens.tolist() == [7, 0, 9]
    assert batch.positions.tolist() == [5, 0, 0]
    want = PackedBatch([Span([7], 5, TABLE[1].tolist()), Span([9], 0, TABLE[2].tolist())], PAGE)
    first, last = want.packed[4:6].tolist()
    assert batch.slots.tolist() == [first, 0, last]
