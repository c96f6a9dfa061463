"""The batch as page tables says the same as the one of rectangles: which slots each row writes and sees."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from nextn.layers.batch import Span, build_batch
from nextn.layers.paged_batch import NO_FORK, PagedBatch

CPU = torch.device("cpu")
TREE = [[0], [0, 1], [0, 2], [0, 2, 3]]


def test_the_worked_example():
    batch = PagedBatch([Span([55], 5, [7, 2]), Span([60, 61], 2, [9], [[0], [0, 1]])], 4, total=4)
    assert (batch.rows, batch.total, batch.longest) == (3, 4, 6)
    assert batch.packed[:24].view(6, 4).tolist() == [
        [55, 60, 61, 0], [5, 2, 3, 0], [9, 38, 39, 0], [1, 3, 3, 0],
        [NO_FORK, 2, 2, NO_FORK], [0, 4, 5, 0],
    ]  # fmt: skip
    assert batch.packed[24:].tolist() == [0, 7, 2, 9, 38, 38, 39]


def seen(batch, row):
    """Slots of the positions that a row sees, as the kernel reads them."""
    plan = batch.on(batch.packed).attention
    page_at, path_at, fork = (int(t[row]) for t in (plan.page_at, plan.path_at, plan.fork))
    return [
        int(plan.table[path_at + p - fork]) if p >= fork
        else int(plan.table[page_at + p // plan.page_size]) * plan.page_size + p % plan.page_size
        for p in range(int(plan.positions[row]) + 1)
    ]  # fmt: skip


@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(1, 9), st.booleans()), min_size=1, max_size=5),
    st.sampled_from([1, 4, 16]),
    st.randoms(use_true_random=False),
)
def test_rows_see_what_they_see_in_rectangles(shapes, page, random):
    spans = []
    for start, n, tree in shapes:
        count = 4 if tree else n
        pages = random.sample(range(1, 500), -(-(start + count) // page))
        spans.append(Span([random.randrange(99) for _ in range(count)], start, pages, TREE if tree else None))
    plain = build_batch(spans, page, 4, CPU)
    paged = PagedBatch(spans, page)
    batch = paged.on(paged.packed)
    for mine, theirs in (
        (batch.tokens, plain.tokens),
        (batch.positions, plain.positions),
        (batch.slots, plain.slots),
    ):
        assert mine.tolist() == theirs[: paged.rows].tolist()
    queries = [
        g.slots.view(g.size[0], 1, -1).expand(-1, g.size[1], -1).flatten(0, 1) for g in plain.attention.groups
    ]
    hidden = [g.hidden.flatten(0, 2) for g in plain.attention.groups]
    want = [
        s[~h].tolist() for group in zip(queries, hidden, strict=True) for s, h in zip(*group, strict=True)
    ]
    assert [seen(paged, row) for row in range(paged.rows)] == [
        want[i] for i in plain.attention.back[: paged.rows].tolist()
    ]
    assert paged.longest == max(len(slots) for slots in want)
