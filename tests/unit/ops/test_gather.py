"""Rectangles of queries and keys: every query sees its own past and nothing else."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nextn.layers.batch import Span, build_batch
from nextn.ops.base import KV_BLOCK, ROW_ALIGN
from nextn.ops.gather import gathered

CPU = torch.device("cpu")
TREE = [[0], [0, 1], [0, 2], [0, 2, 3]]


@settings(max_examples=30, derandomize=True, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(0, 600), st.booleans()), min_size=1, max_size=6),
    st.sampled_from([1, 2, 4, 6, 8, 16]),
    st.sampled_from([1, 4, 16]),
    st.booleans(),
)
def test_every_query_sees_its_own_past_and_nothing_else(shape, heads, page, apart):
    spans, want, free = [], [], 1
    for rows, start, tree in shape:
        n = 4 if tree else rows
        need = -(-(start + n) // page)
        pages = list(range(free, free + need))
        spans.append(Span(list(range(n)), start, pages, TREE if tree else None))
        slots = [pages[p // page] * page + p % page for p in range(start + n)]
        for i in range(n):
            path = TREE[i] if tree else range(i + 1)
            want.append((n > 16, slots[:start] + [slots[start + p] for p in path]))
        free += need
    batch = build_batch(spans, page, CPU, prompts_apart=apart)
    apart = any(long for long, _ in want) and apart
    for prompts in (False, True) if apart else (False,):
        plan = gathered(batch.attention, heads, prompts)
        assert gathered(batch.attention, heads, prompts) is plan
        seen = []
        for g in plan.groups:
            b, q, s = g.size
            assert q * heads % ROW_ALIGN == 0
            assert s % KV_BLOCK == 0
            rows, slots, hidden = g.rows.view(b, q), g.slots.view(b, s), g.hidden.view(b, q, s)
            assert (~hidden).any(-1).all()
            seen += [
                (rows[i, j].item(), slots[i][~hidden[i, j]].tolist()) for i in range(b) for j in range(q)
            ]
        for row, (long, slots) in enumerate(want):
            if not apart or long == prompts:
                assert seen[plan.back[row]] == (row, slots)
            else:
                assert row not in [r for r, _ in seen]
