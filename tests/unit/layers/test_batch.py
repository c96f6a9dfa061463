"""The docstring's worked example, and what every layout must hold."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nextn.layers.batch import Span, build_batch, slots_of
from nextn.ops.base import KV_BLOCK, ROW_ALIGN

CPU = torch.device("cpu")


def test_worked_example():
    batch = build_batch([Span([55], 5, [7, 2]), Span([60, 61, 62], 0, [9])], 4, 8, CPU)
    assert batch.rows == 4
    assert batch.tokens.tolist() == [55, 60, 61, 62, 0, 0, 0, 0]
    assert batch.positions.tolist() == [5, 0, 1, 2, 0, 0, 0, 0]
    assert batch.slots.tolist() == [9, 36, 37, 38, 0, 0, 0, 0]


def test_slots_of_a_page_boundary():
    assert slots_of([3, 1], 4, 5).tolist() == [12, 13, 14, 15, 4]
    assert slots_of([3, 1], 4, 4).tolist() == [12, 13, 14, 15]


@settings(max_examples=60, derandomize=True, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(0, 600)), min_size=1, max_size=6),
    st.sampled_from([1, 2, 4, 6, 8, 16]),
    st.sampled_from([1, 4, 16]),
)
def test_every_query_sees_its_own_past_and_nothing_else(shape, heads, page):
    spans, free = [], 1
    for n, start in shape:
        need = -(-(start + n) // page)
        spans.append(Span(list(range(n)), start, list(range(free, free + need))))
        free += need
    batch = build_batch(spans, page, heads, CPU)
    assert len(batch.tokens) % ROW_ALIGN == 0
    seen = {}
    offset = 0
    for g in batch.attention.groups:
        b, q, s = g.size
        assert q * heads % ROW_ALIGN == 0
        assert s % KV_BLOCK == 0
        rows, slots, hidden = g.rows.view(b, q), g.slots.view(b, s), g.hidden.view(b, q, s)
        assert (~hidden).any(-1).all()
        for i in range(b):
            for j in range(q):
                seen[offset + i * q + j] = (rows[i, j].item(), slots[i][~hidden[i, j]].tolist())
        offset += b * q
    at = 0
    for span in spans:
        table = slots_of(span.pages, page, span.start + len(span.tokens)).tolist()
        for i in range(len(span.tokens)):
            row, visible = seen[batch.attention.back[at].item()]
            assert row == at
            assert visible == table[: span.start + i + 1]
            at += 1
