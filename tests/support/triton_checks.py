"""Checks of every Triton op, on any device and with any dtype: it agrees with plain torch in f32, and a row
has the same bits in any batch. tests/unit/ops/triton runs them with the interpreter, tests/gpu on a
device."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from nextn.layers.batch import PackedBatch, Span, build_batch
from nextn.ops.base import NO_TOKEN, Mixture, Ops, Routing, Tables
from nextn.ops.reference import Reference
from nextn.ops.triton import attention
from nextn.ops.triton.ops import TritonOps

# Norm of a result's error / norm of the result. A sum in bf16 is rounded once, at the end; its inputs are the
# same.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
PLAIN = Reference()


@dataclass
class Device:
    name: str
    dtype: torch.dtype
    large: bool  # shapes of a large model, many rows

    def rand(self, *shape: int, seed: int = 0, dtype: torch.dtype | None = None) -> Tensor:
        gen = torch.Generator().manual_seed(seed)
        return torch.randn(shape, generator=gen).to(self.name, dtype or self.dtype)

    def close(self, got: Tensor, want: Tensor) -> None:
        """want: computed in f32 from the same numbers."""
        assert got.shape == want.shape
        error = ((got.float() - want).norm() / want.norm()).item()
        assert error < TOLERANCE[self.dtype], error


def f32(*tensors: Tensor) -> list[Tensor]:
    return [t.float() for t in tensors]


def parts(rows: int) -> list[tuple[int, int]]:
    """(first, rows) of batches with some of these rows. Few without a GPU: the interpreter takes long for
    each."""
    some = [(rows - 1, 1), (1, 3), (rows // 2, rows - rows // 2)]
    return [*some, (0, 1), (0, rows - 1)] if torch.cuda.is_available() else some


def check_fp8_rows(on: Device) -> None:
    """The same bits as plain torch, also for zeros, for inputs far smaller than the rest, and for NaN and
    infinity."""
    for width in (64, 250, 7168 if on.large else 1300):
        x = on.rand(9, width) * torch.logspace(-4, 4, 9, device=on.name)[:, None].to(on.dtype)
        x[0], x[1, ::3], x[2, 1::7] = 0, 0, x[2, 1::7] / 4096
        x[7, width // 2], x[8, -1] = float("nan"), float("inf")
        found, want = TritonOps().fp8_rows(x), PLAIN.fp8_rows(x)
        assert found.dtype == x.dtype
        assert torch.equal(found.isnan(), want.isnan())
        assert torch.equal(found.nan_to_num(), want.nan_to_num())
        assert torch.equal(TritonOps().fp8_rows(x[3:4])[0], found[3])
        apart = torch.cat((x, x), dim=1)[:, :width]  # with rows that are not contiguous
        assert torch.equal(TritonOps().fp8_rows(apart).nan_to_num(), found.nan_to_num())


def check_uniforms(on: Device) -> None:
    """The same bits as plain torch."""
    rows, count = (40, 151936) if on.large else (3, 2064)
    gen = torch.Generator().manual_seed(0)
    words = [torch.randint(1 << 32, (rows,), generator=gen).to(on.name) for _ in range(4)]
    words[0][0], words[3][1] = (1 << 32) - 1, 0
    found, want = TritonOps().uniforms(*words, count), PLAIN.uniforms(*words, count)
    assert found.dtype == torch.float64
    assert torch.equal(found, want)


def looked_up(on: Device, width: int) -> tuple[Tensor, Tensor, Tables]:
    """Tokens and positions, [T] int64, and the tables in which they are looked up. width: of the embeddings,
    if large."""
    rows, vocab, width, half = (300, 5000, width, 32) if on.large else (7, 9, 40, 3)
    gen = torch.Generator().manual_seed(0)
    tokens, positions = (torch.randint(vocab, (rows,), generator=gen).to(on.name) for _ in range(2))
    cos, sin = (on.rand(vocab, half, seed=seed, dtype=torch.float32) for seed in (4, 5))
    return tokens, positions, Tables(on.rand(vocab, width), cos, sin)


def check_embed(on: Device) -> None:
    """The same bits as plain torch."""
    ops = TritonOps()
    tokens, positions, tables = looked_up(on, 7168)
    want = PLAIN.embed(tokens, positions, tables)
    for a, b in zip(ops.embed(tokens.int(), positions.int(), tables), want, strict=True):
        assert a.dtype == torch.float32
        assert torch.equal(a, b)


def check_embed_beside(on: Device) -> None:
    """The halves have the bits of `rms_norm`, in either order."""
    ops = TritonOps()
    tokens, positions, tables = looked_up(on, 2048)
    positions[::3] = 0
    rows, width = len(tokens), tables.embedding.shape[1]
    hidden = on.rand(rows + 4, width + 3, seed=1)[:, 2 : width + 2]
    norms = on.rand(width, seed=2), on.rand(width, seed=3)
    some = torch.randint(rows + 4, (rows,), generator=torch.Generator().manual_seed(6)).to(on.name)
    for first, masks, source in ((True, False, some), (False, True, some.int()), (True, True, None)):
        states = hidden[:rows] if source is None else hidden
        args = tables, states, source, norms, 1e-6, first, masks
        both, *turned = ops.embed_beside(tokens.int(), positions.int(), *args)
        embeds = tables.embedding[tokens].masked_fill((positions == 0)[:, None] & masks, 0)
        states = states if source is None else states[some]
        halves = ops.rms_norm(embeds, norms[0], 1e-6), ops.rms_norm(states, norms[1], 1e-6)
        assert both.dtype == on.dtype
        assert torch.equal(both, torch.cat(halves if first else halves[::-1], dim=1))
        assert all(torch.equal(a, b[positions]) for a, b in zip(turned, tables[1:], strict=True))
        plain = PLAIN.embed_beside(tokens, positions, *args)
        on.close(both, plain[0].float())


def check_linear(on: Device) -> None:
    ops = TritonOps()
    shapes = [(40, 96), (16, 32)] + [(7168, 2048), (2048, 512), (129, 7168)] * on.large
    for n_out, n_in in shapes:
        rows = 300 if on.large else 21
        wide = on.rand(rows, n_in + 8)
        x, w = wide[:, 4 : n_in + 4], on.rand(n_out, n_in, seed=1)  # each row is a part of a longer one
        full = ops.linear(x, w)
        on.close(full, PLAIN.linear(*f32(x, w)))
        assert full.dtype == on.dtype
        for first, n in parts(rows):
            assert torch.equal(ops.linear(x[first : first + n], w), full[first : first + n])
        summed = ops.linear(x, w, torch.float32)
        assert summed.dtype == torch.float32
        assert torch.equal(summed.to(on.dtype), full)


def check_heads(on: Device) -> None:
    ops = TritonOps()
    rows, heads, nope, value, rank = (40, 16, 128, 128, 512) if on.large else (19, 3, 16, 24, 40)
    kv_up = on.rand(heads, nope + value, rank)
    q = on.rand(rows, heads, nope + 8, seed=1)[..., :nope]
    for x, weight in (
        (q, kv_up[:, :nope]),
        (on.rand(rows, heads, rank, seed=2), kv_up[:, nope:].transpose(1, 2)),
    ):
        full = ops.heads_matmul(x, weight)
        on.close(full, PLAIN.heads_matmul(*f32(x, weight)))
        for first, n in parts(rows):
            assert torch.equal(ops.heads_matmul(x[first : first + n], weight), full[first : first + n])


def check_norm(on: Device) -> None:
    ops = TritonOps()
    rows, hidden = (33, 7168) if on.large else (9, 40)
    x, weight = on.rand(rows, hidden, dtype=torch.float32), on.rand(hidden, seed=1)
    full = ops.rms_norm(x, weight, 1e-6)
    assert full.dtype == on.dtype
    on.close(full, PLAIN.rms_norm(x, weight.float(), 1e-6))
    for first, n in parts(rows):
        assert torch.equal(ops.rms_norm(x[first : first + n], weight, 1e-6), full[first : first + n])


def check_add_norm(on: Device) -> None:
    """Sums are added in order, in f32. Their norm has the bits of `rms_norm`."""
    ops = TritonOps()
    rows, hidden = (33, 7168) if on.large else (9, 40)
    x, first, second = (on.rand(rows, hidden, seed=seed, dtype=torch.float32) for seed in (0, 2, 3))
    weight = on.rand(hidden, seed=1)
    for added, want in (((), x), ((first,), x + first), ((first, second), x + first + second)):
        total, normed = ops.add_norm(x.clone(), added, weight, 1e-6)
        assert torch.equal(total, want)
        assert torch.equal(normed, ops.rms_norm(want, weight, 1e-6))


def check_add_norm_of_a_mixture(on: Device) -> None:
    """The same bits as `combine` followed by `add_norm`, also for padding: rows without choices."""
    ops = TritonOps()
    rows, hidden, top_k = (33, 7168, 8) if on.large else (9, 40, 3)
    x, shared = (on.rand(rows, hidden, seed=seed, dtype=torch.float32) for seed in (0, 2))
    results, weights = (on.rand(rows, top_k, n, seed=4, dtype=torch.float32) for n in (hidden, 1))
    weight, weights = on.rand(hidden, seed=1), weights[..., 0].contiguous()
    for first, routed, n in ((0, rows, rows), (rows - 1, 1, 1), (2, 3, 5)):
        some, mixture = slice(first, first + n), Mixture(results[first : first + routed], weights[first:])
        mixture = mixture._replace(weights=weights[some])
        for plain in ((), (shared[some],)):
            total, normed = ops.add_norm(x[some].clone(), (*plain, mixture), weight, 1e-6)
            want = ops.add_norm(x[some].clone(), (*plain, ops.combine(*mixture)), weight, 1e-6)
            assert torch.equal(total, want[0])
            assert torch.equal(normed, want[1])


def check_latent(on: Device) -> None:
    """Cache entries, and the queries for them."""
    ops = TritonOps()
    rows, heads, nope, rank, rope = (33, 17, 128, 512, 64) if on.large else (19, 3, 16, 40, 8)
    weight, wide = on.rand(rank, seed=1), on.rand(rows, 4 + rank + rope)
    latent = wide[:, 4:]
    cos, sin = (on.rand(rows, rope // 2, seed=i, dtype=torch.float32) for i in (2, 3))
    slots = torch.randperm(64)[:rows].to(on.name, torch.int32)
    key_up = on.rand(heads, nope + 8, rank, seed=4)[:, :nope]
    q = on.rand(rows, heads, nope + rope, seed=5)
    queries = ops.absorb(q, key_up, cos, sin, 0.3)
    on.close(queries, PLAIN.absorb(q.float(), key_up.float(), cos, sin, 0.3))
    before = on.rand(64, rank + rope, seed=6)
    full = before.clone()
    ops.write_latent(full, slots, latent, weight, 1e-6, cos, sin)
    want = before.float().clone()
    PLAIN.write_latent(want, slots.long(), latent.float(), weight.float(), 1e-6, cos, sin)
    on.close(full, want)
    for first, n in parts(rows):
        some = slice(first, first + n)
        assert torch.equal(ops.absorb(q[some], key_up, cos[some], sin[some], 0.3), queries[some])
        cache = before.clone()
        ops.write_latent(cache, slots[some], latent[some], weight, 1e-6, cos[some], sin[some])
        assert torch.equal(cache[slots[some].long()], full[slots[some].long()])
        assert (cache != before).any(dim=1).sum() == n
    query, query_weight = on.rand(rows, 3 * rank + 4, seed=7)[:, 4:], on.rand(3 * rank, seed=8)
    cache = before.clone()
    normed = ops.norm_latents(cache, slots, latent, weight, 1e-6, cos, sin, query, query_weight)
    assert torch.equal(cache, full)
    on.close(normed, PLAIN.rms_norm(*f32(query, query_weight), 1e-6))
    for first, n in parts(rows):
        some, cache = slice(first, first + n), before.clone()
        entries = cache, slots[some], latent[some], weight, 1e-6, cos[some], sin[some]
        assert torch.equal(ops.norm_latents(*entries, query[some], query_weight), normed[some])
        assert torch.equal(cache[slots[some].long()], full[slots[some].long()])


def check_mlp(on: Device) -> None:
    ops = TritonOps()
    rows, hidden, inner = (70, 2048, 1408) if on.large else (18, 40, 24)
    x, gate_up = on.rand(rows, hidden), on.rand(2 * inner, hidden, seed=1) / hidden**0.5
    down = on.rand(hidden, inner, seed=2) / inner**0.5
    full = ops.swiglu_mlp(x, gate_up, down)
    on.close(full, PLAIN.swiglu_mlp(*f32(x, gate_up, down)))
    for first, n in parts(rows):
        assert torch.equal(ops.swiglu_mlp(x[first : first + n], gate_up, down), full[first : first + n])


def check_route(on: Device) -> None:
    """(experts, groups, open groups, K): as in V3, without groups, and with odd numbers."""
    ops, ways = TritonOps(), [(True, False), (False, False), (False, True)]
    sizes = [(8, 4, 2, 2), (6, 1, 1, 3), (15, 3, 2, 4)] + [(256, 8, 4, 8), (160, 8, 3, 6)] * on.large
    for number, (experts, groups, top_groups, top_k) in enumerate(sizes):
        rows = 23 if on.large else 5
        width = 7168 if on.large else 50
        x = on.rand(rows, width)
        router = on.rand(experts, width, seed=1, dtype=torch.float32) / width**0.5
        bias = on.rand(experts, seed=2, dtype=torch.float32) / 10
        for normalize, softmax in ways if on.large else [ways[number]]:
            by = Routing(groups, top_groups, top_k, normalize, 2.5, softmax)
            args = router, bias * (not softmax), by
            ids, weights = ops.route(x, *args)
            want_ids, want = PLAIN.route(x.float(), *args)
            assert torch.equal(ids, want_ids)
            torch.testing.assert_close(weights, want, rtol=1e-4, atol=1e-5)
            for first, n in parts(rows):
                some = ops.route(x[first : first + n], *args)
                assert torch.equal(some[0], ids[first : first + n])
                assert torch.equal(some[1], weights[first : first + n])


def check_equal_experts(on: Device) -> None:
    """Of equal scores the smaller expert number comes first."""
    x, router = on.rand(3, 64), torch.zeros(8, 64, device=on.name)
    ids, weights = TritonOps().route(x, router, torch.zeros(8, device=on.name), Routing(4, 2, 3, True, 1.0))
    assert ids.tolist() == [[0, 1, 2]] * 3
    torch.testing.assert_close(weights, torch.full_like(weights, 1 / 3))


def check_best_token(on: Device) -> None:
    """The same bits as plain torch: nothing is added up. More than one block of logits, fewer, and odd
    numbers."""
    ops = TritonOps()
    for rows, vocab in [(5, 9001), (3, 4096), (4, 37), (2, 1)] + [(40, 129280)] * on.large:
        logits = on.rand(rows, vocab, dtype=torch.float32)
        ids, confidence = ops.best_token(logits)
        want = PLAIN.best_token(logits.clone())
        assert torch.equal(ids, want[0])
        assert torch.equal(confidence, want[1])
        for first, n in parts(rows):
            some = ops.best_token(logits[first : first + n])
            assert torch.equal(some[0], ids[first : first + n])
            assert torch.equal(some[1], confidence[first : first + n])


def check_best_of_equals(on: Device) -> None:
    """Of equal logits the smallest id is chosen, in one lane or in several, with confidence 0. Also -infinity
    and NaN."""
    inf, vocab = float("inf"), 9001
    logits = on.rand(7, vocab, dtype=torch.float32)
    for row, places in enumerate([(11, 4107), (4107, 4108), (9000, 3), (0, 8192)]):
        logits[row, list(places)] = 50.0
    logits[4] = -inf
    logits[5] = -inf
    logits[5, 8999] = 2.0
    logits[6, ::2] = float("nan")
    ids, confidence = TritonOps().best_token(logits)
    assert ids[:6].tolist() == [11, 4107, 3, 0, 0, 8999]
    assert 0 <= int(ids[6]) < vocab
    assert confidence[:6].tolist() == [0.0] * 5 + [inf]
    want = PLAIN.best_token(logits[:6].clone())
    assert torch.equal(ids[:6], want[0])
    assert torch.equal(confidence[:6], want[1])


def check_best_of_product(on: Device) -> None:
    """The same bits in any tiles: the choice among the logits that `linear` computes."""
    ops = TritonOps()
    for rows, vocab, n_in in [(21, 100, 40), (3, 37, 16), (2, 1, 16)] + [(300, 129280, 1024)] * on.large:
        x, weight = on.rand(rows, n_in), on.rand(vocab, n_in, seed=1)
        weight[vocab // 2] = weight[0]  # two rows with equal logits
        weight[:, 0] += torch.where(torch.arange(vocab, device=on.name) % (vocab // 2 + 1) == 0, 9, 0)
        ids, confidence = ops.best_of_product(x, weight)
        logits = ops.linear(x, weight, torch.float32)
        want = ops.best_token(logits)
        assert torch.equal(ids, want[0])
        assert torch.equal(confidence, want[1])
        for first, n in parts(rows):
            some = ops.best_of_product(x[first : first + n], weight)
            assert torch.equal(some[0], ids[first : first + n])
            assert torch.equal(some[1], confidence[first : first + n])


def check_best_of_product_without_numbers(on: Device) -> None:
    """Some rows have NaN and infinities. The other rows do not change."""
    ops, inf = TritonOps(), float("inf")
    x, weight = torch.zeros(4, 16, device=on.name, dtype=on.dtype), on.rand(300, 16).abs()
    x[:, 0] = torch.tensor([1.0, inf, -inf, float("nan")])
    weight[77, 0] = weight[299, 0] = 40.0
    weight[:, 1:] = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # from numpy, in the interpreter
        ids, confidence = ops.best_of_product(x, weight)
    assert ids.tolist() == [77, NO_TOKEN, NO_TOKEN, NO_TOKEN]
    assert torch.equal(PLAIN.best_of_product(*f32(x, weight))[0], ids)
    assert float(confidence[0]) == 0.0
    weight[5, 0] = 41.0
    ids, confidence = ops.best_of_product(x[:1], weight)
    assert (int(ids[0]), float(confidence[0])) == (5, 1.0)


def routed(ops: Ops, x: Tensor, ids: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    return ops.experts(x, ops.dispatch(ids, len(down)), gate_up, down)


def check_experts(on: Device) -> None:
    ops = TritonOps()
    for count, top_k, hidden, inner, rows in [(5, 2, 40, 24, 37)] + [(64, 6, 2048, 1408, 200)] * on.large:
        gate_up = on.rand(count, 2 * inner, hidden) / hidden**0.5
        down = on.rand(count, hidden, inner, seed=1) / inner**0.5
        x = on.rand(rows, hidden, seed=2)
        chances = torch.rand(rows, count, generator=torch.Generator().manual_seed(3))
        ids = chances.topk(top_k).indices.to(on.name)
        ids[: rows // 2, 0] = count - 1  # so that an expert has several tiles
        ids[: rows // 2, 1] = 0
        weights = on.rand(rows, top_k, seed=4, dtype=torch.float32)
        results = routed(ops, x, ids, gate_up, down)
        full = ops.combine(results, weights)
        plain = PLAIN.combine(routed(PLAIN, x.float(), ids, *f32(gate_up, down)), weights)
        on.close(full, plain)
        for first, n in parts(rows):
            some = slice(first, first + n)
            got = routed(ops, x[some], ids[some], gate_up, down)
            assert torch.equal(ops.combine(got, weights[some]), full[some])
        for low in (True, False):  # in two places, each with half of the experts
            mine = (ids < count // 2) == low
            assert torch.equal(routed(ops, x, ids.where(mine, -1), gate_up, down)[mine], results[mine])
        padded = ops.combine(routed(ops, x[:9], ids[:7], gate_up, down), weights[:9])
        assert torch.equal(padded[:7], full[:7])
        assert not padded[7:].any()


def check_experts_with_shared(on: Device) -> None:
    """The same bits as each of both alone, for few rows, which share a launch, and for many. In 16 bits the
    interpreter is slowest, so there the many are fewer."""
    ops = TritonOps()
    many = 66 if on.large or on.dtype == torch.float32 else 20
    for count, top_k, hidden, inner, rows in [(5, 2, 40, 24, many)] + [(64, 6, 2048, 1408, 200)] * on.large:
        gate_up = on.rand(count + 1, 2 * inner, hidden) / hidden**0.5
        down = on.rand(count + 1, hidden, inner, seed=1) / inner**0.5
        x = on.rand(rows, hidden, seed=2)
        chances = torch.rand(rows, count, generator=torch.Generator().manual_seed(3))
        ids = chances.topk(top_k).indices.to(on.name)
        routed_alone = routed(ops, x, ids, gate_up[:count], down[:count])
        shared_alone = ops.swiglu_mlp(x, gate_up[count], down[count])
        for first, n in [*parts(rows), (0, rows)]:
            some = slice(first, first + n)
            runs = ops.dispatch(ids[some], count)
            args = x[some], runs, gate_up[:count], down[:count], gate_up[count], down[count]
            results, shared = ops.experts_with_shared(*args)
            assert torch.equal(results, routed_alone[some])
            assert torch.equal(shared, shared_alone[some])
    runs = ops.dispatch(ids[:7], count)  # padding: rows without choices
    results, shared = ops.experts_with_shared(x[:9], runs, gate_up[:count], down[:count], *args[4:])
    assert torch.equal(results, routed_alone[:7])
    assert torch.equal(shared, shared_alone[:9])
    wide = on.rand(4 * inner, hidden), on.rand(hidden, 2 * inner)  # two shared experts
    results, shared = ops.experts_with_shared(x[:7], runs, gate_up[:count], down[:count], *wide)
    assert torch.equal(shared, ops.swiglu_mlp(x[:7], *wide))


class Parts:
    """`Columns` of each rank in turn. `whole` returns the last part of each rank, and zeros for ranks without
    one."""

    def __init__(self, bounds: list[int]) -> None:
        self.bounds, self.n = bounds, bounds[-1]
        self.seen: dict[int, Tensor] = {}

    def at(self, rank: int) -> Parts:
        self.rank, self.begin, self.end = rank, self.bounds[rank], self.bounds[rank + 1]
        return self

    def gather(self, whole: Tensor) -> None:
        raise AssertionError("these ops ask for `whole`")

    def whole(self, part: Tensor) -> Tensor:
        assert part.shape[1] == self.end - self.begin
        self.seen[self.rank] = part
        found = part.new_zeros(len(part), self.n)
        for rank, one in self.seen.items():
            found[:, self.bounds[rank] : self.bounds[rank + 1]] = one
        return found


def check_columns(on: Device) -> None:
    """Outputs, heads and inner columns have the same bits if only some are computed. The tiles may depend on
    how many there are; the order of a sum may not."""
    ops = TritonOps()
    cuts = [(40, 96, [0, 16, 40]), (100, 32, [0, 64, 100])]
    cuts += [
        (7168, 2048, [0, 3584, 7168]), (2048, 7168, [0, 512, 1024, 2048]), (129280, 512, [0, 16160, 129280]),
    ] * on.large  # fmt: skip
    for n_out, n_in, bounds in cuts:
        for rows in (5, 40, 300) if on.large else (21,):
            x, w = on.rand(rows, n_in), on.rand(n_out, n_in, seed=1)
            full = ops.linear(x, w, torch.float32)
            for begin, end in pairwise(bounds):
                assert torch.equal(ops.linear(x, w[begin:end].clone(), torch.float32), full[:, begin:end])
            assert ops.linear(x, w[:0]).shape == (rows, 0)
    columns_of_heads(on, ops)
    for rows in (5, 40, 300) if on.large else (18,):
        columns_of_feed_forwards(on, ops, rows)


def columns_of_heads(on: Device, ops: TritonOps) -> None:
    rows, heads, nope, value, rank, rope = (40, 16, 128, 128, 512, 64) if on.large else (9, 4, 16, 24, 40, 8)
    kv_up, q = on.rand(heads, nope + value, rank) / rank**0.5, on.rand(rows, heads, nope + rope, seed=1)
    cos, sin = (on.rand(rows, rope // 2, seed=i, dtype=torch.float32) for i in (2, 3))
    cache, pages = on.rand(1600, rank + rope, seed=4), list(range(1, 300))
    batch = PackedBatch([Span([0] * rows, 700 if on.large else 300, pages)], 4)
    spans = batch.on(batch.packed.to(on.name)).attention

    def values(part: slice) -> Tensor:
        weight = kv_up[part].clone()
        query = ops.absorb(q[:, part].contiguous(), weight[:, :nope], cos, sin, 0.3)
        attended = ops.mla_attention(query, cache, spans, rank)
        return ops.heads_matmul(attended, weight[:, nope:].transpose(1, 2))

    full = values(slice(None))
    for part in (slice(heads // 2, heads), slice(1)):
        assert torch.equal(values(part), full[:, part])


def columns_of_feed_forwards(on: Device, ops: TritonOps, rows: int) -> None:
    count, top_k, hidden, inner = (32, 6, 2048, 1408) if on.large else (5, 2, 40, 56)
    x = on.rand(rows, hidden, seed=2)
    gate_up = on.rand(count, 2, inner, hidden) / hidden**0.5
    down = on.rand(count, hidden, inner, seed=1) / inner**0.5
    ids = torch.rand(rows, count, generator=torch.Generator().manual_seed(3)).topk(top_k).indices.to(on.name)
    weights = on.rand(rows, top_k, seed=4, dtype=torch.float32)
    runs = ops.dispatch(ids, count)
    dense = ops.swiglu_mlp(x, gate_up[0].flatten(0, 1), down[0])
    routed = ops.combine(ops.experts(x, runs, gate_up.flatten(1, 2), down), weights)
    half = hidden // 2 // 16 * 16
    for cut in {inner // 2 // 16 * 16, 16}:
        one, many = Parts([0, cut, inner]), Parts([0, cut, inner])
        for rank in (0, 1, 0):  # at its first turn the first rank does not have the other's inner columns
            some = slice(half) if rank == 0 else slice(half, hidden)
            own = gate_up[:, :, slice(cut) if rank == 0 else slice(cut, inner)].flatten(1, 2)
            got = ops.swiglu_mlp(x, own[0], down[0, some], inner=one.at(rank))
            results = ops.experts(x, runs, own, down[:, some].contiguous(), inner=many.at(rank))
            if len(one.seen) == 2:
                assert torch.equal(got, dense[:, some])
                assert torch.equal(ops.combine(results, weights), routed[:, some])


def check_attention(on: Device) -> None:
    """A sequence as a whole, in pieces, beside others and as a tree."""
    ops = TritonOps()
    heads, rank, width, length = (20, 512, 576, 2100) if on.large else (3, 24, 40, 324)
    page = 4
    cache = on.rand(4 * page * (length // page), width)
    gen = torch.Generator().manual_seed(1)
    pages = (torch.randperm(2 * (length // page), generator=gen) + 1)[: length // page].tolist()
    other = list(range(1, 60))
    tail = length - 10  # position of the first row that is computed
    q = on.rand(10, heads, width, seed=2) / width**0.5

    def run(spans: list[Span], queries: Tensor, total: int | None = None) -> Tensor:
        batch = PackedBatch(spans, page, total)
        plan = batch.on(batch.packed.to(on.name)).attention
        padded = torch.cat((queries, queries.new_zeros(batch.total - len(queries), heads, width)))
        return ops.mla_attention(padded, cache, plan, rank)[: len(queries)]

    def plain(spans: list[Span], queries: Tensor) -> Tensor:
        batch = build_batch(spans, page, torch.device(on.name))
        padded = torch.cat((queries, queries.new_zeros(len(batch.tokens) - len(queries), heads, width)))
        return PLAIN.mla_attention(*f32(padded, cache), batch.attention, rank)[: len(queries)]

    spans = [Span([0] * 10, tail, pages)]
    whole = run(spans, q)
    on.close(whole, plain(spans, q))
    assert torch.equal(run(spans, q, total=16), whole)
    for i in (0, 4, 9):
        assert torch.equal(run([Span([0], tail + i, pages)], q[i : i + 1]), whole[i : i + 1])
    beside = [Span([0] * 3, 10, other), Span([0] * 2, tail + 4, pages), Span([0], 0, other)]
    mixed = run(beside, torch.cat((q[:3], q[4:6], q[:1])))
    assert torch.equal(mixed[3:5], whole[4:6])
    assert torch.equal(mixed[:3], run(beside[:1], q[:3]))  # one part of keys, beside spans with several
    # The root, two drafts after it, and one after the second of these, which is in slot 2 and at position 1.
    tree = [Span([0] * 4, tail, pages, [[0], [0, 1], [0, 2], [0, 2, 3]]), Span([0], 5, other)]
    found = run(tree, q[:5])
    on.close(found, plain(tree, q[:5]))
    assert torch.equal(found[:2], whole[:2])


def check_trees_attention(on: Device) -> None:
    """A node of a tree has the same bits as the last row of a chain, at any boundaries of blocks and parts of
    keys."""
    ops = TritonOps()
    heads, rank, width = (20, 512, 576) if on.large else (3, 24, 40)
    paths = [[0], [0, 1], [0, 2], [0, 2, 3], [0, 1, 4], [0, 1, 4, 5], [0, 2, 3, 6]]
    n = len(paths)
    cache = on.rand(600, width)
    q = on.rand(n + 3, heads, width, seed=1) / width**0.5

    def run(spans: list[Span], queries: Tensor) -> Tensor:
        batch = PackedBatch(spans, 1)
        return ops.mla_attention(queries, cache, batch.on(batch.packed.to(on.name)).attention, rank)

    for start in (5, 62, 510) if on.large else (5, 253):
        slots = (torch.randperm(599, generator=torch.Generator().manual_seed(start)) + 1).tolist()
        tree, beside = Span([0] * n, start, slots[: start + n], paths), Span([0] * 3, 40, slots[:50])
        found = run([tree, beside], q)
        for row, path in enumerate(paths):
            pages = slots[:start] + [slots[start + i] for i in path]
            alone = run([Span([0], len(pages) - 1, pages)], q[row : row + 1])
            assert torch.equal(alone, found[row : row + 1])
        assert torch.equal(run([beside], q[n:]), found[n:])
        level = Span(
            [0] * 2, start, slots[: start + n], paths[5:]
        )  # a drafter's pass: some nodes without the root
        assert torch.equal(run([level], q[5:7]), found[5:7])


def check_attention_in_parts(on: Device) -> None:
    """Parts of keys have the same bits if each has its own program or one program does all of them."""
    ops = TritonOps()
    heads, rank, width, length = (20, 512, 576, 3000) if on.large else (3, 24, 40, 560)
    slots = (torch.randperm(length, generator=torch.Generator().manual_seed(1)) + 1).tolist()
    cache = on.rand(length + 1, width)
    paths = [[0], [0, 1], [0, 2], [0, 2, 3]]
    pages = list(range(1, 40))
    for spans in (
        [Span([0] * 3, length - 3, slots), Span([0], 20, pages), Span([0] * 5, 254, slots[:260])],
        [Span([0] * 4, start, slots[: start + 4], paths) for start in (5, 253, 2700)[: 2 + on.large]],
    ):
        batch = PackedBatch(spans, 1)
        plan = batch.on(batch.packed.to(on.name)).attention
        q = on.rand(batch.rows, heads, width, seed=2) / width**0.5
        found = ops.mla_attention(q, cache, plan, rank)
        before, attention.SCRATCH = attention.SCRATCH, 0
        try:
            assert torch.equal(ops.mla_attention(q, cache, plan, rank), found)
        finally:
            attention.SCRATCH = before
        built = build_batch(spans, 1, torch.device(on.name))
        padded = torch.cat((q, q.new_zeros(len(built.tokens) - len(q), heads, width)))
        on.close(found, PLAIN.mla_attention(*f32(padded, cache), built.attention, rank)[: len(q)])


def check_write_kv(on: Device) -> None:
    """Queries and entries: with a bias, with norms, and with a part of a head rotated; and without these."""
    ops = TritonOps()
    rows, heads, groups, width = (33, 96, 8, 128) if on.large else (5, 4, 2, 24)
    slots = torch.randperm(64)[:rows].to(on.name, torch.int32)
    for half, with_bias, with_norm in ((width // 2, False, True), (4, True, True), (8, True, False)):
        qkv = on.rand(rows, (heads + 2 * groups) * width)
        bias = on.rand(qkv.shape[1], seed=1) if with_bias else None
        norms = [on.rand(width, seed=seed) if with_norm else None for seed in (2, 3)]
        cos, sin = (on.rand(rows, half, seed=seed, dtype=torch.float32) for seed in (4, 5))
        before = on.rand(64, groups, 2 * width, seed=6)
        full = before.clone()
        query = ops.write_kv(full, slots, qkv, bias, *norms, 1e-6, cos, sin, 0.3)
        want = before.float()
        wide = [None if t is None else t.float() for t in (bias, *norms)]
        on.close(query, PLAIN.write_kv(want, slots.long(), qkv.float(), *wide, 1e-6, cos, sin, 0.3))
        on.close(full, want)
        for first, n in parts(rows) if with_bias and with_norm else ():
            some, cache = slice(first, first + n), before.clone()
            args = qkv[some], bias, *norms, 1e-6, cos[some], sin[some], 0.3
            assert torch.equal(ops.write_kv(cache, slots[some], *args), query[some])
            assert torch.equal(cache[slots[some].long()], full[slots[some].long()])


def check_gqa_attention(on: Device) -> None:
    """A sequence as a whole, in pieces, beside others, as a tree, with parts of keys in their own programs;
    and some heads alone."""
    ops = TritonOps()
    heads, groups, width, length = (96, 8, 128, 2100) if on.large else (4, 2, 24, 270)
    cache = on.rand(2 * length, groups, 2 * width)
    slots = (torch.randperm(2 * length - 1, generator=torch.Generator().manual_seed(1)) + 1)[:length].tolist()
    tail = length - 10
    q = on.rand(10, heads, width, seed=2) / width**0.5

    def run(spans: list[Span], queries: Tensor, entries: Tensor = cache) -> Tensor:
        batch = PackedBatch(spans, 1)
        return ops.gqa_attention(queries, entries, batch.on(batch.packed.to(on.name)).attention)

    def plain(spans: list[Span], queries: Tensor) -> Tensor:
        batch = build_batch(spans, 1, torch.device(on.name))
        padded = torch.cat((queries, queries.new_zeros(len(batch.tokens) - len(queries), heads, width)))
        return PLAIN.gqa_attention(*f32(padded, cache), batch.attention)[: len(queries)]

    spans = [Span([0] * 10, tail, slots)]
    whole = run(spans, q)
    on.close(whole, plain(spans, q))
    before, attention.SCRATCH = attention.SCRATCH, 0
    try:
        assert torch.equal(run(spans, q), whole)
    finally:
        attention.SCRATCH = before
    for i in (0, 9):
        assert torch.equal(run([Span([0], tail + i, slots)], q[i : i + 1]), whole[i : i + 1])
    other = list(range(1, 60))
    mixed = run([Span([0] * 3, 10, other), Span([0] * 2, tail + 4, slots)], torch.cat((q[:3], q[4:6])))
    assert torch.equal(mixed[3:], whole[4:6])
    tree = [Span([0] * 4, tail, slots, [[0], [0, 1], [0, 2], [0, 2, 3]]), Span([0], 5, other)]
    found = run(tree, q[:5])
    on.close(found, plain(tree, q[:5]))
    assert torch.equal(found[:2], whole[:2])
    each = heads // groups
    for g, some in ((1, slice(each, 2 * each)), (0, slice(1, each))):  # the heads of a rank
        assert torch.equal(run(spans, q[:, some].contiguous(), cache[:, g : g + 1]), whole[:, some])


CHECKS = {name.removeprefix("check_"): f for name, f in list(globals().items()) if name.startswith("check_")}
