"""Row invariance of the reference ops: bits, not tolerances. And their arithmetic against plain formulas."""

import functools

import pytest
import torch
import torch.nn.functional as F

from nextn.layers.batch import Span, build_batch
from nextn.ops.base import ROW_ALIGN, Routing
from nextn.ops.probe import product_modes
from nextn.ops.reference import Reference
from nextn.ops.rotary import rotate

CPU = torch.device("cpu")
COUNTS = (8, 16, 24, 64, 256)


SHAPES = {(352, 256), (64, 100), (4096, 256), (256, 128), (256, 256), (8, 256), (8, 50), (3, 16), (10, 256)}


@functools.cache
def ops():
    return Reference(product_modes(SHAPES, torch.float32, CPU))


def rand(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("mode", ["probed", "blocks", "sums"])
@pytest.mark.parametrize(("n_out", "n_in"), [(352, 256), (64, 100), (8, 50), (3, 16), (10, 256)])
def test_linear_rows(n_out, n_in, mode):
    op = ops() if mode == "probed" else Reference({(n_out, n_in): mode})
    if mode == "blocks" and product_modes({(n_out, n_in)}, torch.float32, CPU)[n_out, n_in] == "sums":
        pytest.skip("blocks are not enough for this shape here")
    w, x = rand(n_out, n_in), rand(256, n_in, seed=1)
    full = op.linear(x, w)
    torch.testing.assert_close(full, x @ w.t(), rtol=1e-4, atol=1e-4)
    batched = op._bmm(x.expand(2, -1, -1), w.t().expand(2, -1, -1))
    torch.testing.assert_close(batched[1], full)
    for n in COUNTS:
        for start in (0, 8, 48, 1, 3):
            part = x[start : start + n]
            n = len(part) // ROW_ALIGN * ROW_ALIGN
            assert torch.equal(op.linear(part[:n], w), full[start : start + n])
            assert torch.equal(op._bmm(part[None, :n], w.t()[None])[0], batched[0, start : start + n])


def test_the_vocabulary_is_row_invariant_too():
    op, w, x = ops(), rand(4096, 256), rand(64, 256, seed=1)
    assert torch.equal(op.linear(x[8:16], w), op.linear(x, w)[8:16])


@pytest.mark.parametrize("experts", [4, 6, 10, 256])
def test_equal_rows_are_routed_equally(experts):
    """Bits of a row's scores do not depend on where it stands in the batch."""
    op = Reference(product_modes({(experts, 32)}, torch.float32, CPU))
    router, bias = rand(experts, 32), torch.zeros(experts)
    for seed in range(50):
        x = rand(1, 32, seed=seed).expand(8, -1).contiguous()
        ids, weights = op.route(x, router, bias, Routing(1, 1, 2, True, 1.0))
        assert (ids == ids[0]).all()
        assert (weights == weights[0]).all()


def test_norm_and_rotate_and_mlp_rows():
    op = ops()
    x = rand(256, 256)
    weight = rand(256, seed=2)
    gate_up, down = rand(256, 256, seed=3) / 16, rand(256, 128, seed=4) / 11
    cos, sin = rand(256, 16, seed=5), rand(256, 16, seed=6)
    full = (
        op.rms_norm(x, weight, 1e-6),
        op.swiglu_mlp(x, gate_up, down),
        rotate(x.view(256, 8, 32), cos, sin),
    )
    want = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight
    torch.testing.assert_close(full[0], want)
    added = (rand(256, 256, seed=7), rand(256, 256, seed=8))
    total, normed = op.add_norm(x, added, weight, 1e-6)
    assert torch.equal(total, x + added[0] + added[1])  # in this order
    assert torch.equal(normed, op.rms_norm(total, weight, 1e-6))
    for n in COUNTS:
        part = x[8 : 8 + n]
        k = len(part)
        assert torch.equal(op.rms_norm(part, weight, 1e-6), full[0][8 : 8 + k])
        assert torch.equal(op.swiglu_mlp(part, gate_up, down), full[1][8 : 8 + k])
        turned = rotate(part.view(k, 8, 32), cos[8 : 8 + k], sin[8 : 8 + k])
        assert torch.equal(turned, full[2][8 : 8 + k])


@pytest.mark.parametrize("heads", [1, 4, 6, 16])
def test_attention_rows_do_not_depend_on_the_cut(heads):
    """A sequence fed whole, in chunks, token by token and beside others: the same bits."""
    op = ops()
    page, rank, width, length = 4, 32, 48, 600
    cache = rand(200 * page, width)
    pages = (torch.randperm(199, generator=torch.Generator().manual_seed(1)) + 1)[: length // page].tolist()
    other = list(range(1, 60))
    q = rand(length, heads, width, seed=2) / 7

    def run(spans, queries):
        batch = build_batch(spans, page, CPU)
        padded = F.pad(queries, (0, 0, 0, 0, 0, len(batch.tokens) - len(queries)))
        return op.mla_attention(padded, cache, batch.attention, rank)[: len(queries)]

    whole = run([Span([0] * length, 0, pages)], q)
    slots = torch.tensor([p * page + i for p in pages for i in range(page)])
    for t in (0, 5, 255, 256, 257, 599):
        keys = cache[slots[: t + 1]].double()
        p = (q[t].double() @ keys.t()).softmax(-1)
        torch.testing.assert_close(whole[t].double(), p @ keys[:, :rank], rtol=1e-4, atol=1e-5)
    for cut in (1, 3, 17, 100, 256):
        starts = [0, 254, 256, 480, 599] if cut < 17 else range(0, length, cut)
        for start in starts:
            n = min(cut, length - start)
            alone = run([Span([0] * n, start, pages)], q[start : start + n])
            assert torch.equal(alone, whole[start : start + n]), (cut, start)
    spans = [
        Span([0] * 3, 10, other),
        Span([0], 599, pages),
        Span([0] * 2, 130, other),
        Span([0] * 40, 256, pages),
    ]
    mixed = run(spans, torch.cat((q[:3], q[599:600], q[:2], q[256:296])))
    assert torch.equal(mixed[3], whole[599])
    assert torch.equal(mixed[6:46], whole[256:296])


def test_keys_far_below_the_best_weigh_nothing():
    """Tiny weights would make denormal products, which are slow."""
    rank, page = 16, 4
    cache, q = torch.full((64, 24), 3e38), torch.zeros(ROW_ALIGN, 1, 24)
    cache[:, rank:], q[:, :, rank:] = -1, 5  # scores are those of the part behind the values
    cache[20], cache[20, rank:] = rand(24), 1
    batch = build_batch([Span([0], 40, list(range(16)))], page, CPU)
    assert torch.equal(ops().mla_attention(q, cache, batch.attention, rank)[0, 0], cache[20, :rank])


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 8, 64])
def test_experts_rows(rows):
    op = ops()
    experts, top, inner, hidden = 8, 2, 128, 256
    router, bias = rand(experts, hidden) / 16, rand(experts, seed=1) / 10
    gate_up, down = rand(experts, 2 * inner, hidden, seed=2) / 16, rand(experts, hidden, inner, seed=3) / 11
    x = rand(64, hidden, seed=4)

    def run(part):
        padded = F.pad(part, (0, 0, 0, -len(part) % ROW_ALIGN))
        ids, weights = op.route(padded, router, bias, Routing(4, 2, top, True, 2.5))
        results = op.experts(padded, op.dispatch(ids[: len(part)], experts), gate_up, down)
        return ids, weights, op.combine(results, weights), results

    ids, weights, full, results = run(x)
    for start in {0, min(5, 64 - rows), 64 - rows}:
        part = run(x[start : start + rows])[2]
        assert torch.equal(part[:rows], full[start : start + rows])
        assert (part[rows:] == 0).all()
    for low in (True, False):  # computed in two places: each has half of the experts
        mine = (ids < experts // 2) == low
        some = op.dispatch(ids.where(mine, -1), experts)
        assert torch.equal(op.experts(x, some, gate_up, down)[mine], results[mine])
    nobody = op.dispatch(torch.full_like(ids, -1), experts)
    assert op.experts(x, nobody, gate_up, down).shape == results.shape
    t = 3
    want = sum(
        weights[t, k]
        * (F.silu(x[t] @ gate_up[e, :inner].t()) * (x[t] @ gate_up[e, inner:].t()))
        @ down[e].t()
        for k, e in enumerate(ids[t].tolist())
    )
    torch.testing.assert_close(full[t], want)


def test_route_by_softmax():
    """DeepSeek-V2's: scores over all experts, groups by their best one. A row's bits are its own."""
    op = ops()
    router, none, by = rand(12, 16), torch.zeros(12), Routing(4, 2, 3, False, 16.0, softmax=True)
    x = rand(64, 16, seed=2)
    ids, weights = op.route(x, router, none, by)
    scores = (x @ router.t()).softmax(-1)
    for t in range(64):
        best = scores[t].view(4, 3).amax(-1).topk(2).indices.tolist()
        allowed = [e for g in best for e in range(3 * g, 3 * g + 3)]
        want = sorted(allowed, key=lambda e: -scores[t][e].item())[:3]
        assert ids[t].tolist() == want
        torch.testing.assert_close(weights[t], 16 * scores[t][want])
    for start, rows in ((0, 8), (8, 16), (40, 24)):
        some = op.route(x[start : start + rows], router, none, by)
        assert torch.equal(some[0], ids[start : start + rows])
        assert torch.equal(some[1], weights[start : start + rows])


def test_route_limits_groups():
    op = ops()
    router, bias = rand(8, 16), rand(8, seed=1)
    x = rand(64, 16, seed=2)
    ids, weights = op.route(x, router, bias, Routing(4, 2, 3, True, 1.5))
    scores = (x @ router.t()).sigmoid()
    for t in range(64):
        biased = scores[t] + bias
        best = biased.view(4, 2).sum(-1).topk(2).indices.tolist()
        allowed = [e for g in best for e in (2 * g, 2 * g + 1)]
        want = sorted(allowed, key=lambda e: -biased[e].item())[:3]
        assert ids[t].tolist() == want
        w = scores[t][want]
        torch.testing.assert_close(weights[t], w / w.sum() * 1.5)


def test_the_best_token_and_by_how_much_it_leads():
    inf = float("inf")
    x = torch.tensor([[0.0, 3.0, 1.5, 3.0], [2.0, -inf, -inf, -inf], [-inf] * 4, [-1.0, -4.0, -1.5, -9.0]])
    ids, confidence = ops().best_token(x)
    assert ids.tolist() == [1, 0, 0, 0]
    assert confidence.tolist() == [0.0, inf, 0.0, 0.5]
    assert [t.tolist() for t in ops().best_token(torch.zeros(2, 1))] == [[0, 0], [inf, inf]]


@pytest.mark.parametrize(("heads", "groups"), [(1, 1), (6, 2), (12, 1), (4, 4)])
def test_grouped_attention_rows_do_not_depend_on_the_cut(heads, groups):
    """As above; and a group of heads has the bits that it has alone."""
    op = ops()
    page, width, length = 4, 32, 300
    cache = rand(100 * page, groups, 2 * width)
    pages = (torch.randperm(99, generator=torch.Generator().manual_seed(1)) + 1)[: length // page].tolist()
    q = rand(length, heads, width, seed=2) / 7

    def run(spans, queries, entries=cache):
        batch = build_batch(spans, page, CPU)
        padded = F.pad(queries, (0, 0, 0, 0, 0, len(batch.tokens) - len(queries)))
        return op.gqa_attention(padded, entries, batch.attention)[: len(queries)]

    whole = run([Span([0] * length, 0, pages)], q)
    slots = torch.tensor([p * page + i for p in pages for i in range(page)])
    for t in (0, 5, 255, 256, 299):
        values, keys = cache[slots[: t + 1]].double().repeat_interleave(heads // groups, 1).split(width, -1)
        p = torch.einsum("hd,shd->hs", q[t].double(), keys).softmax(-1)
        want = torch.einsum("hs,shd->hd", p, values)
        torch.testing.assert_close(whole[t].double(), want, rtol=1e-4, atol=1e-5)
    for start, n in ((0, 1), (254, 3), (280, 17), (0, 100)):
        alone = run([Span([0] * n, start, pages)], q[start : start + n])
        assert torch.equal(alone, whole[start : start + n])
    tree = Span([0] * 3, 270, pages, [[0], [0, 1], [0, 1, 2]])
    assert torch.equal(run([tree], q[270:273]), whole[270:273])
    some, spans = slice(heads // groups), [Span([0] * 9, 40, pages)]
    assert torch.equal(run(spans, q[40:49, some].contiguous(), cache[:, :1]), run(spans, q[40:49])[:, some])


@pytest.mark.parametrize("with_norms", [False, True])
def test_write_kv(with_norms):
    heads, groups, width, half, rows = 6, 2, 12, 4, 16
    qkv, bias = rand(rows, (heads + 2 * groups) * width), rand((heads + 2 * groups) * width, seed=1)
    norms = [rand(width, seed=seed) if with_norms else None for seed in (2, 3)]
    cos, sin, slots = rand(rows, half, seed=4), rand(rows, half, seed=5), torch.randperm(20)[:rows]
    cache = torch.full((20, groups, 2 * width), 7.0)
    query = Reference().write_kv(cache, slots, qkv, bias, *norms, 1e-6, cos, sin, 0.5)

    def made(x, weight):
        if weight is not None:
            x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight
        return torch.cat((x[..., : width - 2 * half], rotate(x[..., width - 2 * half :], cos, sin)), -1)

    q, k, v = (qkv + bias).unflatten(1, (-1, width)).split((heads, groups, groups), dim=1)
    torch.testing.assert_close(query, made(q, norms[0]) * 0.5)
    torch.testing.assert_close(cache[slots], torch.cat((v, made(k, norms[1])), -1))
    untouched = sorted(set(range(20)) - set(slots.tolist()))
    assert cache[untouched].eq(7).all()
    part = torch.zeros_like(cache)
    some = slice(8, 16)
    args = qkv[some], bias, *norms, 1e-6, cos[some], sin[some], 0.5
    assert torch.equal(Reference().write_kv(part, slots[some], *args), query[some])
    assert torch.equal(part[slots[some]], cache[slots[some]])
