"""Calls single native kernels on tensors, at any instruction set level.

with at_level("avx2"), Pool(threads=2) as pool:
    y = linear(pool, x, weight)
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType

import pytest
import torch
from torch import Tensor

from nextn.layers.batch import PackedBatch, Span
from nextn.models.native import native_batch
from nextn.ops.cpu import library as native
from nextn.ops.cpu.heads import latent_heads
from nextn.ops.cpu.interface import BF16, E4M3, F32, FeedForward, Heads
from nextn.ops.cpu.library import NoLibrary, library, runnable_levels
from nextn.ops.cpu.weights import PackedWeight, padded

HALF = 2.0**-9  # largest relative error of rounding to bf16
SINGLE = 2.0**-24  # and to f32


def built_levels() -> tuple[str, ...]:
    """The levels that are built and that this machine runs."""
    try:
        return runnable_levels()
    except NoLibrary as e:
        if any(shutil.which(name) for name in ("c++", "g++", "clang++")):
            raise
        pytest.skip(f"no native kernels and no C++ compiler to build them with: {e}")


@contextmanager
def at_level(name: str) -> Iterator[None]:
    """Inside, `library()` returns the library of this level. Skips the test if the level cannot run here."""
    if name not in built_levels():
        pytest.skip(f"no kernels for {name} here: the machine or the compiler does not know it")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "machine_level", lambda: (name, "asked for by a test"))
        library.cache_clear()
        yield
    library.cache_clear()


class Pool:
    """A native pool of threads."""

    def __init__(self, threads: int = 1) -> None:
        self._library = library()
        self.handle = self._library.nx_pool_new(threads)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._library.nx_pool_free(self.handle)


def widened(x: Tensor, to: int, dtype: torch.dtype) -> Tensor:
    """x [rows, n] with each row padded with zeros to a multiple of `to`."""
    return torch.nn.functional.pad(x, (0, padded(x.shape[1], to) - x.shape[1])).to(dtype).contiguous()


def linear(pool: Pool, x: Tensor, weight: PackedWeight) -> Tensor:
    """x [rows, n_in] -> [rows, n_out] f32."""
    x = x.float().contiguous() if weight.kind == F32 else widened(x, 2, torch.bfloat16)
    y = torch.full((x.shape[0], weight.struct.n_out), torch.nan)
    library().nx_linear(pool.handle, x.data_ptr(), x.shape[0], weight.struct, y.data_ptr())
    return y[:, : weight.shape[0]]


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [rows, n] f32, weight [n] -> [rows, n] f32."""
    wide = widened(x, 32, torch.float32)
    scale = widened(weight[None], 32, torch.float32)
    y = torch.full_like(wide, torch.nan)
    library().nx_norm(wide.data_ptr(), scale.data_ptr(), len(x), x.shape[1], wide.shape[1], eps, y.data_ptr())
    return y[:, : x.shape[1]]


def heads_attention(
    pool: Pool, cache: Tensor, page: int, spans: Sequence[Span], q: Tensor, heads: Heads
) -> Tensor:
    """cache [slots, width] bf16, q [groups, T, heads, key] bf16, scaled -> [T, groups, heads, columns]
    f32."""
    batch = PackedBatch(spans, page)
    assert q.shape == (heads.groups, batch.rows, heads.heads, heads.key), q.shape
    assert q.is_contiguous()
    out = torch.full((batch.rows, heads.groups, heads.heads, heads.columns), torch.nan, dtype=torch.bfloat16)
    library().nx_attention(
        pool.handle, native_batch(batch), cache.data_ptr(), cache.shape[1], page, heads, q.data_ptr(),
        out.data_ptr(),
    )  # fmt: skip
    return out.float()


def attention(
    pool: Pool,
    cache: Tensor,
    page: int,
    spans: Sequence[Span],
    q: Tensor,
    rank: int,
) -> Tensor:
    """MLA: cache [slots, width] bf16, q [T, H, width] bf16, scaled -> [T, H, rank] f32. rank: a multiple of
    32."""
    heads = latent_heads(q.shape[1], rank, cache.shape[1])
    return heads_attention(pool, cache, page, spans, q[None].contiguous(), heads)[:, 0]


class FeedForwardBlock:
    """Random weights of a feed-forward block: as bf16 values in f64, and packed in bf16.

    router [E, C], bias [E], ups [E, 2, I, C], downs [E, C, I]; shared_up [2, S, C], shared_down [C, S].
    """

    def __init__(
        self,
        hidden: int,
        inner: int,
        experts: int,
        shared_inner: int,
        *,
        groups: int = 1,
        top_groups: int = 1,
        top_k: int = 0,
        normalize: bool = True,
        softmax: bool = False,
        scale: float = 2.5,
        seed: int = 0,
    ) -> None:
        gen = torch.Generator().manual_seed(seed)

        def random(*shape: int) -> Tensor:
            return torch.randn(shape, generator=gen).mul_(shape[-1] ** -0.5).bfloat16().double()

        self.hidden, self.top_k, self.groups, self.top_groups = hidden, top_k, groups, top_groups
        self.normalize, self.softmax, self.scale, self.experts = normalize, softmax, scale, experts
        self.stride = padded(hidden, 32)
        self._kept: list[PackedWeight] = []
        self.struct = FeedForward(
            experts=experts, groups=groups, top_groups=top_groups, top_k=top_k, normalize=normalize,
            softmax=softmax, scale=scale,
        )  # fmt: skip
        if experts:
            self.router = random(experts, hidden).float()
            self.bias = torch.randn(experts, generator=gen) * 0.1
            self.ups, self.downs = random(experts, 2, inner, hidden), random(experts, hidden, inner)
            router = PackedWeight(experts, hidden, F32)
            router.place(self.router)
            self._kept.append(router)
            self._bias = widened(self.bias[None], 16, torch.float32)
            self.struct.router, self.struct.bias = router.struct, self._bias.data_ptr()
            self.struct.gate_up, self.struct.down = self._packed(self.ups, self.downs)
        if shared_inner:
            self.shared_up, self.shared_down = random(2, shared_inner, hidden), random(hidden, shared_inner)
            self.struct.shared_gate_up, self.struct.shared_down = self._packed(
                self.shared_up[None], self.shared_down[None]
            )
        self.shared_inner = shared_inner

    def _packed(self, ups: Tensor, downs: Tensor) -> tuple[object, object]:
        members, _, inner, hidden = ups.shape
        gate_up = PackedWeight(2 * padded(inner, 16), hidden, BF16, members)
        down = PackedWeight(hidden, inner, BF16, members)
        for i in range(members):
            gate_up.place(ups[i, 0], member=i, first=0, interleave=2)
            gate_up.place(ups[i, 1], member=i, first=1, interleave=2)
            down.place(downs[i], member=i)
        self._kept += [gate_up, down]
        return gate_up.struct, down.struct

    def rows(self, count: int, seed: int = 1) -> Tensor:
        """[count, C] f32 normed rows."""
        return torch.randn(count, self.hidden, generator=torch.Generator().manual_seed(seed))

    def run(self, pool: Pool, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """h [rows, C] -> (block(h), ids, weights)."""
        rows = len(h)
        wide, half = widened(h, 32, torch.float32), widened(h, 32, torch.bfloat16)
        out = torch.full_like(wide, torch.nan)
        ids = torch.full((rows, self.top_k), -1, dtype=torch.int32)
        weights = torch.full((rows, self.top_k), torch.nan)
        library().nx_feed_forward(
            pool.handle, self.struct, wide.data_ptr(), half.data_ptr(), rows, self.stride, out.data_ptr(),
            ids.data_ptr(), weights.data_ptr(),
        )  # fmt: skip
        return out[:, : self.hidden], ids, weights

    def steps(
        self, pool: Pool, h: Tensor, parts: int, shared: Tensor | None, read: Tensor | None = None
    ) -> Tensor:
        """The routed experts of h [rows, C], step by step, plus shared [rows, C]. Each of `parts` parts
        computes the experts whose number modulo `parts` is the part's own. read: rows that the experts read
        instead of h."""
        rows, top_k = len(h), self.top_k
        wide, half = widened(h, 32, torch.float32), widened(h if read is None else read, 32, torch.bfloat16)
        ids = torch.full((rows, top_k), -1, dtype=torch.int32)
        weights = torch.full((rows, top_k), torch.nan)
        results = torch.full((rows, top_k, self.stride), torch.nan)
        y = torch.full_like(wide, torch.nan)
        library().nx_route(
            pool.handle, self.struct, wide.data_ptr(), rows, self.stride, ids.data_ptr(), weights.data_ptr()
        )
        for part in range(parts):
            mine = ids.where(ids % parts == part, -1)
            library().nx_experts(
                pool.handle, self.struct, half.data_ptr(), mine.data_ptr(), rows, self.stride,
                results.data_ptr(),
            )  # fmt: skip
        beside = None if shared is None else widened(shared, 32, torch.float32)
        library().nx_combine(
            results.data_ptr(), weights.data_ptr(), top_k, None if beside is None else beside.data_ptr(),
            rows, self.stride, y.data_ptr(),
        )  # fmt: skip
        return y[:, : self.hidden]


def e4m3(weight: Tensor, block: tuple[int, int]) -> tuple[PackedWeight, Tensor]:
    """(weight [N, K] packed in e4m3, the same values in f64), with a scale for each block of [rows,
    columns]."""
    n, k = weight.shape
    rows, columns = block
    scales = torch.rand(-(-n // rows), -(-k // columns), generator=torch.Generator().manual_seed(n)) + 0.5
    stored = weight.to(torch.float8_e4m3fn)
    by_row = scales.repeat_interleave(rows, 0)[:n].contiguous()
    packed = PackedWeight(n, k, E4M3, block=columns)
    packed.place(stored, scale=by_row)
    return packed, stored.double() * by_row.double().repeat_interleave(columns, 1)[:, :k]
