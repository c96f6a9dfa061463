"""Checks of the Triton ops that take e4m3 blocks, like those of `support.triton_checks` for plain weights. An
op agrees with plain torch in f32, gives a row the same bits in any batch, and an output the same bits beside
any others."""

from __future__ import annotations

import torch
from support.triton_checks import PLAIN, Device, parts, routed

from nextn.ops.fp8 import Fp8Matrix
from nextn.ops.triton.ops import TritonOps


def blocks(on: Device, *shape: int, block: int, seed: int = 0) -> Fp8Matrix:
    """A random matrix. Its scales differ between blocks and between outputs by up to a factor of 64."""
    data = on.rand(*shape, seed=seed, dtype=torch.float32).to(torch.float8_e4m3fn)
    scale = 2.0 ** (
        3.0 * on.rand(*shape[:-1], -(-shape[-1] // block), seed=seed + 1, dtype=torch.float32).sin()
    )
    return Fp8Matrix(data, scale * shape[-1] ** -0.5, block)


def check_linear(on: Device) -> None:
    """Whole blocks, a last block with fewer inputs, and fewer inputs than one block."""
    ops = TritonOps()
    shapes = [(40, 256, 128), (24, 40, 16), (16, 96, 128)]
    shapes += [(7168, 2048, 128), (576, 7168, 128), (129, 1504, 128)] * on.large
    for n_out, n_in, block in shapes:
        rows = 300 if on.large else 21
        x, w = on.rand(rows, n_in), blocks(on, n_out, n_in, block=block, seed=1)
        full = ops.linear(x, w)
        on.close(full, PLAIN.linear(x.float(), w))
        assert full.dtype == on.dtype
        for first, n in parts(rows):
            assert torch.equal(ops.linear(x[first : first + n], w), full[first : first + n])
        for some in (slice(0, 7), slice(7, n_out)):  # as on a rank, or in stacked matrices
            assert torch.equal(ops.linear(x, w[some]), full[:, some])


def check_mlp(on: Device) -> None:
    ops = TritonOps()
    rows, hidden, inner, block = (70, 2048, 1408, 128) if on.large else (18, 40, 24, 16)
    x, gate_up = on.rand(rows, hidden), blocks(on, 2 * inner, hidden, block=block, seed=1)
    down = blocks(on, hidden, inner, block=block, seed=3)
    full = ops.swiglu_mlp(x, gate_up, down)
    on.close(full, PLAIN.swiglu_mlp(x.float(), gate_up, down))
    for first, n in parts(rows):
        assert torch.equal(ops.swiglu_mlp(x[first : first + n], gate_up, down), full[first : first + n])


def check_experts(on: Device) -> None:
    """With a shared expert, for few and for many rows: the bits are the same as of the routed and the shared
    experts alone."""
    ops = TritonOps()
    sizes = [(3, 2, 40, 24, 20, 16) if on.dtype == torch.float32 else (3, 1, 40, 24, 20, 32)]
    if on.large:
        sizes = [(5, 2, 40, 24, 37, 16), (3, 1, 40, 24, 66, 32), (64, 6, 2048, 1408, 200, 128)]
    for count, top_k, hidden, inner, rows, block in sizes:
        gate_up = blocks(on, count + 1, 2 * inner, hidden, block=block)
        down = blocks(on, count + 1, hidden, inner, block=block, seed=2)
        x = on.rand(rows, hidden, seed=4)
        chances = torch.rand(rows, count, generator=torch.Generator().manual_seed(3))
        ids = chances.topk(top_k).indices.to(on.name)
        experts, shared = (gate_up[:count], down[:count]), (gate_up[count], down[count])
        alone = routed(ops, x, ids, *experts)
        on.close(alone, routed(PLAIN, x.float(), ids, *experts))
        shared_alone = ops.swiglu_mlp(x, *shared)
        for first, n in [*parts(rows), (0, rows)]:
            some = slice(first, first + n)
            results, beside = ops.experts_with_shared(
                x[some], ops.dispatch(ids[some], count), *experts, *shared
            )
            assert torch.equal(results, alone[some])
            assert torch.equal(beside, shared_alone[some])


FP8_CHECKS = {"linear": check_linear, "mlp": check_mlp, "experts": check_experts}
