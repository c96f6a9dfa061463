"""The two ceilings of this machine, read bandwidth and operations/s, with the engine's number of threads.

Read bandwidth: three ops of torch that do little else than read memory and, if the native library is built,
its read. The fastest one differs between machines, so all are timed and the best median counts. Their buffer
is in large pages, like the native weights.

Operations: products by F.linear, squares of several sizes and one of 256 rows, in bf16 (oneDNN) and in f32;
the best median of each dtype counts. Also the native library's multiply-adds without any other work
(csrc/peak.h), for each arithmetic that it has: the peak of its own products.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from nextn.bench.dev.micro import arithmetic
from nextn.bench.dev.micro.arithmetic import Shares
from nextn.bench.dev.micro.clock import NATIVE, Case
from nextn.bench.dev.micro.native_pool import NativePool, large
from nextn.bench.dev.micro.op_work import Work, linear
from nextn.machine import data_caches

FALLBACK = {2: 1 << 20, 3: 32 << 20}  # bytes by cache level, if the system does not report it
DRAM = 256 << 20  # minimum size of the buffer that is read; eight times the last cache if that is more
SQUARES = (512, 1024, 2048)
NARROW = (256, 4096, 2048)  # rows, n_out, n_in
TASKS = 16  # tasks of multiply-adds for each thread


def cache_bytes(level: int) -> int:
    """Size of this machine's data cache in bytes. Level 3 of a CPU without one is the size of level 2."""
    found = data_caches()
    if level == 3 and 3 not in found and 2 in found:
        return found[2]
    return found.get(level, FALLBACK[level])


@dataclass(frozen=True)
class Ceilings:
    """The cases of the ceilings. Their samples come from `clock.measure`, and for reads also from pauses
    between the measured steps."""

    read: list[Case]
    caches: dict[str, Case]  # "l2", "l3": the same read from a buffer of half that cache
    bf16: list[Case]  # the last one is NARROW, the shape of the headline linear at 256 rows
    f32: list[Case]
    sizes: dict[str, int] = field(default_factory=dict)  # bytes of the buffers that are read, by name
    native: dict[str, Case] = field(default_factory=dict)  # by the arithmetic of the native kernels

    @property
    def read_bytes_per_s(self) -> float:
        return max(case.bytes_per_s for case in self.read)

    @property
    def unrest(self) -> float:
        """How busy the machine was: of the fastest read's times, the 90th percentile over the 10th. It is 1
        on an idle machine."""
        best = max(self.read, key=lambda case: case.bytes_per_s)
        fast, slow = np.percentile(best.samples, (10, 90)).tolist()
        return float(slow / fast)

    def flops_per_s(self, dtype: torch.dtype) -> float:
        """The peak in f32 if the dtype is f32, otherwise in bf16: products with one-byte weights are computed
        in bf16 too."""
        return max(case.flops_per_s for case in (self.f32 if dtype is torch.float32 else self.bf16))

    def peak(self, parts: Shares) -> float:
        """Maximum operations/s of work that uses each arithmetic by these shares."""
        peaks = {name: case.flops_per_s for name, case in self.native.items()}
        for dtype in (torch.float32, torch.bfloat16):
            peaks[arithmetic.of_torch(dtype)] = self.flops_per_s(dtype)
        return arithmetic.peak(parts, peaks)

    def as_dict(self) -> dict[str, object]:
        """The record for results, in decimal GB/s and GFLOP/s."""
        return {
            "read_gb_s": {c.name: c.bytes_per_s / 1e9 for c in self.read},
            "cache_gb_s": {name: c.bytes_per_s / 1e9 for name, c in self.caches.items()},
            "bf16_gflop_s": {c.name: c.flops_per_s / 1e9 for c in self.bf16},
            "f32_gflop_s": {c.name: c.flops_per_s / 1e9 for c in self.f32},
            "native_gflop_s": {name: c.flops_per_s / 1e9 for name, c in self.native.items()},
            "bytes_read": self.sizes,
        }


def make_ceilings(
    pool: NativePool | None, dram: int | None = None, squares: Sequence[int] = SQUARES
) -> Ceilings:
    """Makes the cases. dram: bytes of the buffer that is read; None: the larger of DRAM and eight times the
    last cache."""
    l2, l3 = cache_bytes(2), cache_bytes(3)
    dram = max(DRAM, 8 * l3) if dram is None else dram
    buffer = large(dram).view(torch.float32).fill_(1.0)
    integers, halves = buffer.view(torch.int64), buffer.chunk(2)
    moved = Work(buffer.numel() * 4, 0)
    read = [
        Case("sum of float32", moved, [lambda: buffer.sum()]),
        Case("dot of two float32 halves", moved, [lambda: torch.dot(*halves)]),
        Case("sum of int64", moved, [lambda: integers.sum()]),
    ]
    if pool is not None:
        read.append(Case("native read", moved, [lambda: pool.read(buffer)], team=NATIVE))
    native = {} if pool is None else {name: multiply_adds(pool, name) for name in pool.able}
    caches = {}
    for name, size in (("l2", l2), ("l3", l3)):
        part = buffer[: min(size // 2, dram) // 4]
        caches[name] = Case(name, Work(part.numel() * 4, 0), [part.sum])
    shapes = [*((n, n, n) for n in squares), NARROW]
    bf16, f32 = ([product(*shape, dtype) for shape in shapes] for dtype in (torch.bfloat16, torch.float32))
    sizes = {"dram": dram} | {name: case.work.bytes for name, case in caches.items()}
    return Ceilings(read, caches, bf16, f32, sizes, native)


def multiply_adds(pool: NativePool, name: str) -> Case:
    tasks = TASKS * pool.threads
    work = Work(0, pool.multiply(name, tasks))
    return Case(name, work, [lambda: pool.multiply(name, tasks)], team=NATIVE)


def product(rows: int, n_out: int, n_in: int, dtype: torch.dtype) -> Case:
    gen = torch.Generator().manual_seed(0)
    x: Tensor = torch.randn(rows, n_in, generator=gen).to(dtype)
    weight: Tensor = torch.randn(n_out, n_in, generator=gen).to(dtype)
    return Case(
        f"{rows} rows, {n_out}x{n_in}",
        linear(rows, n_out, n_in, dtype.itemsize),
        [lambda: F.linear(x, weight)],
    )
