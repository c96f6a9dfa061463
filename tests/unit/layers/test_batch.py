"""The docstring's worked example, and what every layout must say: the slots that each row writes and sees."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from nextn.layers.batch import PackedBatch, Span, build_batch
from nextn.ops.base import ROW_ALIGN

CPU = torch.device("cpu")
TREE = [[0], [0, 1], [0, 2], [0, 2, 3]]


def test_worked_example():
    spans = [
        Span([55], 5, [7, 2]),
        Span([60, 61], 0, [9]),
        Span([70, 71, 72], 2, [4, 6], [[0], [0, 1], [0, 2]]),
    ]
    packed = PackedBatch(spans, 4, total=8)
    assert (packed.rows, packed.total, packed.longest) == (6, 8, 6)
    batch = packed.on(packed.packed)
    assert batch.rows == 8
    assert batch.tokens.tolist() == [55, 60, 61, 70, 71, 72, 0, 0]
    assert batch.positions.tolist() == [5, 0, 1, 2, 3, 3, 0, 0]
    assert batch.slots.tolist() == [9, 36, 37, 18, 19, 24, 0, 0]
    plan = batch.attention
    assert plan.span_of.tolist() == [0, 1, 1, 2, 2, 2, 3, 3]
    assert plan.cu_paths.tolist() == [6, 6, 6, 6, 7, 9, 11, 11, 11]
    assert plan.starts.tolist()[:4] == [5, 0, 2, 0]
    assert plan.page_at.tolist()[:4] == [1, 3, 4, 0]
    assert plan.cu_rows.tolist() == [0, 1, 3, 6, 8, 8, 8, 8, 8]
    assert plan.table.tolist() == [0, 7, 2, 9, 4, 6, 18, 18, 19, 18, 24]
    assert (plan.count, plan.page_size, plan.longest) == (3, 4, 6)


def test_a_batch_for_plain_torch():
    batch = build_batch([Span([55], 5, [7, 2]), Span([60, 61, 62], 0, [9])], 4, CPU)
    assert batch.rows == 4
    assert batch.tokens.tolist() == [55, 60, 61, 62, 0, 0, 0, 0]
    assert batch.slots.tolist() == [9, 36, 37, 38, 0, 0, 0, 0]
    assert batch.slots.dtype == torch.int64


def test_long_spans_apart():
    short, long = Span([0] * 16, 0, [1, 2, 3, 4]), Span([0] * 17, 3, [5, 6, 7, 8, 9])
    batch = build_batch([short, long, short], 4, CPU, prompts_apart=True)
    assert batch.attention.prompts.tolist() == [False] * 16 + [True] * 17 + [False] * 16 + [False] * 7
    assert build_batch([short, short], 4, CPU, prompts_apart=True).attention.prompts is None
    assert build_batch([short, long], 4, CPU).attention.prompts is None


def slots_of(span, page, row):
    """Of the positions that a row sees."""

    def slot(p):
        return span.pages[p // page] * page + p % page

    path = range(row + 1) if span.paths is None else span.paths[row]
    return [slot(p) for p in [*range(span.start), *(span.start + i for i in path)]]


def seen(batch, row):
    """The same, as a kernel reads them."""
    plan = batch.attention
    span = int(plan.span_of[row])
    start, page_at = int(plan.starts[span]), int(plan.page_at[span])
    path = plan.table[plan.cu_paths[row] : plan.cu_paths[row + 1]].tolist()
    return [
        path[p - start] if path and p >= start
        else int(plan.table[page_at + p // plan.page_size]) * plan.page_size + p % plan.page_size
        for p in range(int(plan.positions[row]) + 1)
    ]  # fmt: skip


@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(1, 9), st.booleans()), min_size=1, max_size=5),
    st.sampled_from([1, 4, 16]),
    st.integers(0, 5),
    st.randoms(use_true_random=False),
)
def test_rows_see_their_own_past(shapes, page, padding, random):
    spans, want = [], []
    for start, n, tree in shapes:
        count = 4 if tree else n
        pages = random.sample(range(1, 500), -(-(start + count) // page))
        span = Span([random.randrange(99) for _ in range(count)], start, pages, TREE if tree else None)
        spans.append(span)
        want += [(token, slots_of(span, page, row)) for row, token in enumerate(span.tokens)]
    rows = len(want)
    packed = PackedBatch(spans, page, rows + padding)
    for batch in (packed.on(packed.packed), build_batch(spans, page, CPU)):
        assert batch.tokens[:rows].tolist() == [token for token, _ in want]
        assert [seen(batch, row) for row in range(rows)] == [slots for _, slots in want]
        assert batch.positions[:rows].tolist() == [len(slots) - 1 for _, slots in want]
        assert batch.slots[:rows].tolist() == [slots[-1] for _, slots in want]
        for row in range(rows, len(batch.tokens)):
            assert (seen(batch, row), int(batch.slots[row])) == ([0], 0)
        plan = batch.attention
        assert plan.longest == max(len(slots) for _, slots in want)
        for row, span in enumerate(plan.span_of.tolist()):
            assert plan.cu_rows[span] <= row < plan.cu_rows[span + 1]
    assert len(build_batch(spans, page, CPU).tokens) % ROW_ALIGN == 0


def test_no_rows():
    """Of a group that only computes for others."""
    batch = build_batch([], 4, torch.device("cpu"))
    assert (batch.rows, len(batch.tokens), batch.attention.longest) == (0, 0, 0)
