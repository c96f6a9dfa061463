"""Bytes and operations of each op, against numbers worked out by hand."""

from __future__ import annotations

from nextn.bench.dev.micro import op_work
from nextn.bench.dev.micro.op_work import Work


def test_linear() -> None:
    # 4 * (8 * 6 weights + 2 rows * (6 in + 8 out)); 2 * 2 * 8 * 6 operations
    assert op_work.linear(2, 8, 6, 4) == Work(4 * (48 + 28), 192)


def test_packed_linear() -> None:
    # the weight's own bytes, whatever they are, and 2 rows * (6 in + 8 out) of 2 bytes
    assert op_work.packed_linear(2, 8, 6, 70, 2) == Work(70 + 2 * 28, 192)


def test_row_ops() -> None:
    assert op_work.rms_norm(3, 10, 2) == Work(2 * (60 + 10), 120)
    # two streams read and one written in f32, 3 rows of bf16 written, the weight read
    assert op_work.add_norm(3, 10, 2) == Work(12 * 30 + 2 * (30 + 10), 150)
    # 3 rows, 2 heads of 4: read and written in bf16; cos and sin, 2 f32 each, for every row
    assert op_work.rotate(3, 2, 4, 2) == Work(2 * 2 * 24 + 4 * 12, 72)
    assert op_work.write_latent(3, 10, 4, 2) == Work(2 * (60 + 10) + 2 * 2 * 12 + 48 + 24, 120 + 36)
    both = op_work.heads_matmul(3, 2, 4, 5, 2) + op_work.rotate(3, 2, 6, 2)
    assert op_work.absorb(3, 2, 4, 5, 6, 2) == both


def test_swiglu() -> None:
    # gate, up and down are 6 x 4 each
    assert op_work.swiglu_mlp(5, 6, 4, 2) == Work(2 * (72 + 60), 2 * 5 * 72)


def test_attention() -> None:
    assert op_work.pairs(1, 7) == 7
    assert op_work.pairs(3, 3) == 1 + 2 + 3
    # 2 of 5 positions, 3 heads, latent 4 + 2: positions see 4 + 5 keys, each 6 products for the score, 4 for
    # the value
    assert op_work.mla_attention(2, 5, 3, 4, 2, 2) == Work(2 * (5 * 6 + 2 * 3 * (6 + 4)), 2 * 9 * 3 * 10)
    # keys of 3 + 2, values of 7: expanded from 4 for 5 positions in 3 heads
    up = 3 * 4 * (3 + 7)
    want = Work(2 * (30 + up + 2 * 3 * (3 + 2 + 7)), 2 * 5 * up + 2 * 9 * 3 * (5 + 7))
    assert op_work.naive_attention(2, 5, 3, 4, 3, 2, 7, 2) == want


def test_grouped_attention() -> None:
    # two rows see 4 and 5 keys of 2 heads; 6 query heads of 8
    found = op_work.gqa_attention(2, 5, 6, 2, 8, size=2)
    assert found == Work(2 * (5 * 2 * 16 + 2 * 6 * 16), 2 * 9 * 6 * 16)
    # read and written: (6 + 2 * 2) * 8 elements of a row; 4 of 8 of a query or key are rotated
    moved = 2 * 2 * 3 * 80 + 3 * (4 * 4 + 8)
    assert op_work.write_kv(3, 6, 2, 8, 4, size=2) == Work(moved, 3 * 3 * 8 * 4)


def test_heads_and_experts() -> None:
    assert op_work.heads_matmul(2, 3, 4, 5, 4) == Work(4 * (60 + 2 * 3 * 9), 240)
    # gate 8 x 6 and bias in f32; two rows of 6 in bf16; 2 rows * 2 ids (8 bytes) and weights (4 bytes)
    assert op_work.route(2, 6, 8, 2, 2) == Work(4 * 56 + 24 + 48, 192)
    assert op_work.dispatch(2, 3) == Work(16 * 6, 0)
    # 2 rows * 3 results of 6 in bf16, their weights and the sums in f32
    assert op_work.combine(2, 6, 3, 2) == Work(2 * 36 + 4 * 6 + 4 * 12, 2 * 36)
    # 3 experts of 3 * 6 * 4 are read; 2 rows * 2 experts compute
    assert op_work.experts(2, 6, 4, 2, 3, 2) == Work(2 * (216 + 24) + 48, 2 * 4 * 72)
    # with 2.5 experts on average
    assert op_work.experts(2, 6, 4, 2, 2.5, 2) == Work(2 * (180 + 24) + 48, 2 * 4 * 72)


def test_packed_weights_count_as_they_are_stored() -> None:
    # rows of 4 elements in bf16, three weights in 50 bytes
    assert op_work.packed_mlp(2, 4, 3, 50, 2) == Work(50 + 2 * 2 * 2 * 4, 6 * 2 * 4 * 3)
    # 2.5 experts of 40 bytes; 12 bytes of an id and its weight for 2 x 2 results
    assert op_work.packed_experts(2, 6, 4, 2, 2.5, 40, 2) == Work(100 + 48 + 48, 2 * 4 * 72)


def test_sums() -> None:
    assert Work(100, 400) + Work(100, 0) == Work(200, 400)
