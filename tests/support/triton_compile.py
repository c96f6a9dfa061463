"""Compiles Triton kernels for GPUs that this machine does not have, and prints the resources that each needs.

    python -m support.triton_compile 90        # compute capability 9.0: H100. 80: A100.

The ops run on tensors without memory (device `meta`). Each launch is compiled with the argument types and
divisibilities that it would have on a GPU, and not run. ptxas comes with triton. It needs its own process,
because `TRITON_INTERPRET=1` is read when triton is imported. Each line of the output is JSON.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nextn.layers.batch import PackedBatch, Span
from nextn.ops.base import Mixture, Routing, Tables
from nextn.ops.fp8 import Fp8Matrix
from nextn.ops.triton import attention as attention_kernels
from nextn.ops.triton import early
from nextn.ops.triton.ops import TritonOps
from nextn.sampling.row_draws import Choosing
from nextn.speculative.device.columns import INPUTS, RESULT_WIDTH
from nextn.speculative.device.cutoff import NUMBERS, edges
from nextn.speculative.device.numbers import StepMemory
from nextn.speculative.device.relay import Relay
from nextn.speculative.device.shape import Drafting, StepShape
from nextn.speculative.device.triton.numbers import TritonNumbers

OPS = TritonOps()
Calls = Iterator[tuple[str, int]]  # model and number of rows of the next calls
FEW = 32  # rows
SHARED = {80: 163 * 1024, 90: 227 * 1024}  # maximum bytes of shared memory of a block, by capability


@dataclass(frozen=True)
class Compiled:
    kernel: str
    model: str
    rows: int
    shape: str  # constants
    warps: int
    shared: int  # bytes of a block
    registers: int  # in a thread
    spilled: int  # bytes of a thread that did not fit into registers
    # Which of these it has: mma, wgmma (matrix units), FFMA (f32, fused). Only read for bf16 kernels that
    # multiply matrices or join parts of sums; FFMA only for those of attention, because it takes long.
    instructions: str
    layouts: str  # layouts of the matrix units' results, from which the order of sums follows
    inputs: str  # consecutive inputs of mma in a thread; the order of sums also follows from these


@dataclass(frozen=True)
class Sizes:
    """The sizes of a model. One layer of each kind of product is enough."""

    hidden: int
    heads: int
    q_rank: int
    rank: int
    nope: int
    rope: int
    value: int
    experts: int
    top_k: int
    groups: int
    inner: int
    vocab: int


MODELS = {
    "v3": Sizes(7168, 128, 1536, 512, 128, 64, 128, 256, 8, 8, 2048, 129280),
    "1b": Sizes(1024, 16, 512, 256, 64, 32, 64, 32, 4, 8, 512, 32768),
    "tiny": Sizes(256, 4, 96, 64, 32, 16, 32, 8, 2, 4, 128, 4096),
}


class _Device:
    """What triton needs of a device in order to compile."""

    def __init__(self, capability: int) -> None:
        from triton.backends.compiler import GPUTarget

        self.target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> object:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("meta")


def compiled(capability: int, calls: Callable[[], Calls], only: set[str]) -> Iterator[Compiled]:
    """Every kernel that the ops launch, once each. only: names of kernels; empty for all."""
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    driver.set_active(_Device(capability))
    launched: list[tuple[str, Any]] = []
    run = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        if not only or self.fn.__name__ in only:
            launched.append((self.fn.__name__, run(self, *args, grid=grid, warmup=True, **kwargs)))

    JITFunction.run = compile_only
    room, attention_kernels.shared_memory = attention_kernels.shared_memory, lambda _: SHARED[capability]
    there, early.supported = early.supported, lambda _: capability >= 90
    seen: set[str] = set()
    try:
        case, left = ("", 0), calls()
        while True:
            after = next(left, None)  # kernels launched until then belong to `case`
            for name, kernel in launched:
                if kernel.hash not in seen:
                    seen.add(kernel.hash)
                    yield _measured(name, kernel, *case)
            launched.clear()
            if after is None:
                return
            case = after
    finally:
        JITFunction.run, attention_kernels.shared_memory, early.supported = run, room, there


def _measured(name: str, kernel: Any, model: str, rows: int) -> Compiled:
    asm, metadata = kernel.asm, kernel.metadata
    sums = "bf16" in asm["ttir"] and ("tt.dot" in asm["ttir"] or name == "_join")
    found = re.findall(r"\b(mma|wgmma)\b", asm["ptx"]) if sums else []
    if sums and name in ("_attend", "_join"):
        found += re.findall(r"\bFFMA\b", _tool("cuobjdump", asm["cubin"], "-sass"))
    usage = re.search(r"REG:(\d+) STACK:(\d+)", _tool("cuobjdump", asm["cubin"], "--dump-resource-usage"))
    assert usage is not None
    constants = {k[0]: v for k, v in kernel.src.constants.items() if not isinstance(k, str)}
    names = kernel.src.fn.arg_names
    shape = " ".join(f"{names[i]}={v}" for i, v in sorted(constants.items()) if names[i].isupper())
    return Compiled(
        name, model, rows, shape, metadata.num_warps, metadata.shared, int(usage[1]), int(usage[2]),
        " ".join(sorted(set(found))), " ".join(sorted(re.findall(r"^#mma\d* = (.*)$", asm["ttgir"], re.M))),
        " ".join(sorted(set(re.findall(r"kWidth = (\d+)", asm["ttgir"])))),
    )  # fmt: skip


def _tool(name: str, cubin: bytes, *options: str) -> str:
    """The output of one of the NVIDIA tools that come with triton."""
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin" / name
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        env = os.environ | {"PATH": f"{tool.parent}{os.pathsep}{os.environ['PATH']}"}
        done = subprocess.run(
            [tool, *options, file.name], capture_output=True, text=True, check=True, env=env
        )
    return done.stdout


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def all_ops(dtype: torch.dtype, models: dict[str, Sizes], counts: list[int]) -> Calls:
    """Calls every op at every model's sizes, with counts[i] requests of one row each."""
    for model, s in models.items():
        for rows in counts:
            yield model, rows
            x = meta(rows, s.hidden, dtype=dtype)
            embeddings(s, x)
            attention(s, x)
            grouped_attention(x)
            feed_forward(s, x)
            head = meta(s.vocab, s.hidden, dtype=dtype)
            OPS.best_token(OPS.linear(x, head, torch.float32))
            OPS.best_of_product(x, head)
            word = meta(rows, dtype=torch.int64)
            OPS.uniforms(word, word, word, word, s.vocab)


def fp8_products(models: dict[str, Sizes], counts: list[int]) -> Calls:
    """Calls the products with e4m3 blocks, for rows in bf16."""
    for model, s in models.items():
        for rows in counts:
            yield model, rows
            x, ids = meta(rows, s.hidden), meta(rows, s.top_k, dtype=torch.int64)
            gate_up, down = blocks(s.experts, 2 * s.inner, s.hidden), blocks(s.experts, s.hidden, s.inner)
            runs = OPS.dispatch(ids, s.experts)
            OPS.experts_with_shared(x, runs, gate_up, down, gate_up[0], down[0])
            OPS.swiglu_mlp(x, gate_up[0], down[0])
            OPS.linear(x, blocks(s.q_rank + s.rank + s.rope, s.hidden))
            OPS.linear(meta(rows, s.heads * s.value), blocks(s.hidden, s.heads * s.value), torch.float32)


def blocks(*shape: int) -> Fp8Matrix:
    return Fp8Matrix.empty(shape, 128, torch.device("meta"))


def embeddings(s: Sizes, x: Tensor) -> None:
    tokens, norm = meta(len(x), dtype=torch.int32), meta(s.hidden, dtype=x.dtype)
    turns = meta(4096, s.rope // 2, dtype=torch.float32)
    tables = Tables(meta(s.vocab, s.hidden, dtype=x.dtype), turns, turns)
    OPS.embed(tokens, tokens, tables)
    for rows in (tokens, None):
        OPS.embed_beside(tokens, tokens, tables, x, rows, (norm, norm), 1e-6, True, True)


def step_numbers(counts: list[int]) -> Calls:
    """Calls what a step on the device launches between its passes, for counts[i] requests."""
    device = torch.device("meta")
    for requests in counts:
        relay = Relay(requests, 64, device)
        lines = meta(requests, INPUTS, dtype=torch.int32), meta(requests, RESULT_WIDTH, dtype=torch.int32)
        floats = meta(NUMBERS, dtype=torch.float32), edges(device)
        for drafting in (Drafting(), Drafting(2, True), Drafting(2, True, cut=True)):
            yield "step", requests
            shape = StepShape(requests, requests + 1, drafting, Choosing.GREEDY, 512)
            numbers = TritonNumbers(StepMemory(relay, *lines, *floats, 16, 1), shape)
            numbers.begin()
            numbers.verify(meta(requests + 1, dtype=torch.int64))
            for step in range(drafting.num_steps):
                sure = meta(requests, dtype=torch.float32) if drafting.cut else None
                numbers.guessed(step, meta(requests, dtype=torch.int64), sure)
            numbers.end()


def attention(s: Sizes, x: Tensor) -> None:
    rows, dtype, f32 = len(x), x.dtype, torch.float32
    down = OPS.linear(x, meta(s.q_rank + s.rank + s.rope, s.hidden, dtype=dtype))
    q, latent = down.split((s.q_rank, s.rank + s.rope), dim=-1)
    OPS.rms_norm(q, meta(s.q_rank, dtype=dtype), 1e-6)
    cos = sin = meta(rows, s.rope // 2, dtype=f32)
    cache, norm = meta(65536, s.rank + s.rope, dtype=dtype), meta(s.rank, dtype=dtype)
    entries = cache, meta(rows, dtype=torch.int32), latent, norm, 1e-6, cos, sin
    OPS.write_latent(*entries)
    q = OPS.norm_latents(*entries, q, meta(s.q_rank, dtype=dtype))
    q = OPS.linear(q, meta(s.heads * (s.nope + s.rope), s.q_rank, dtype=dtype))
    kv_up = meta(s.heads, s.nope + s.value, s.rank, dtype=dtype)
    q = OPS.absorb(q.unflatten(-1, (s.heads, -1)), kv_up[:, : s.nope], cos, sin, 0.1)
    values = OPS.heads_matmul(attend(s, q), kv_up[:, s.nope :].transpose(1, 2))
    OPS.linear(values.flatten(1), meta(s.hidden, s.heads * s.value, dtype=dtype), f32)


def attend(s: Sizes, q: Tensor) -> Tensor:
    """Attention after 1,024 tokens and, if there are so few rows that the keys are split, after 99."""
    cache = meta(65536, s.rank + s.rope, dtype=q.dtype)
    for longest in (100, 1025) if len(q) <= FEW else (1025,):
        batch = PackedBatch([Span([0], longest - 1, [0] * 65)] * len(q), 16)
        spans = batch.on(meta(len(batch.packed), dtype=torch.int32), longest).attention
        mixed = OPS.mla_attention(q, cache, spans, s.rank)
    return mixed


def grouped_attention(x: Tensor, heads: int = 96, groups: int = 8, width: int = 128, half: int = 32) -> None:
    """GLM-4.6's attention, after the same numbers of tokens."""
    rows, cache = len(x), meta(65536, groups, 2 * width, dtype=x.dtype)
    qkv, norm = meta(rows, (heads + 2 * groups) * width, dtype=x.dtype), meta(width, dtype=x.dtype)
    cos, slots = meta(rows, half, dtype=torch.float32), meta(rows, dtype=torch.int32)
    q = OPS.write_kv(cache, slots, qkv, qkv[0], norm, norm, 1e-6, cos, cos, 0.1)
    for longest in (100, 1025) if rows <= FEW else (1025,):
        batch = PackedBatch([Span([0], longest - 1, [0] * 65)] * rows, 16)
        OPS.gqa_attention(q, cache, batch.on(meta(len(batch.packed), dtype=torch.int32), longest).attention)


def feed_forward(s: Sizes, x: Tensor) -> None:
    router, bias = meta(s.experts, s.hidden, dtype=torch.float32), meta(s.experts, dtype=torch.float32)
    ids, weights = OPS.route(x, router, bias, Routing(s.groups, s.groups // 2, s.top_k, True, 2.5))
    gate_up = meta(s.experts, 2 * s.inner, s.hidden, dtype=x.dtype)
    down = meta(s.experts, s.hidden, s.inner, dtype=x.dtype)
    runs = OPS.dispatch(ids, s.experts)
    OPS.fp8_rows(x)
    results, shared = OPS.experts_with_shared(x, runs, gate_up, down, gate_up[0], down[0])
    OPS.combine(results, weights)
    OPS.swiglu_mlp(x, gate_up[0], down[0])
    stream, norm = meta(len(x), s.hidden, dtype=torch.float32), meta(s.hidden, dtype=x.dtype)
    OPS.add_norm(stream, (shared,), norm, 1e-6)
    OPS.add_norm(stream, (shared, Mixture(results, weights)), norm, 1e-6)


def main(
    capability: int, dtypes: list[str], models: list[str], given: list[list[int]], only: set[str]
) -> None:
    """given: counts of rows, of each dtype or of all. only: names of kernels; empty for all."""
    chosen = {name: MODELS[name] for name in models}
    for dtype, counts in zip(dtypes, given * (len(dtypes) // len(given)), strict=True):
        if dtype == "fp8":
            calls = partial(fp8_products, chosen, counts)
        elif dtype == "int32":
            calls = partial(step_numbers, counts)
        else:
            calls = partial(all_ops, getattr(torch, dtype), chosen, counts)
        for one in compiled(capability, calls, only):
            print(json.dumps({"dtype": dtype, **dataclasses.asdict(one)}), flush=True)


if __name__ == "__main__":
    args = [*sys.argv[1:], *["90", "bfloat16,float32", "v3,1b,tiny", "1,32,300"][len(sys.argv) - 1 :]]
    of_each = [[int(n) for n in counts.split(",")] for counts in args[3].split(";")]
    names = set(args[4].split(",")) if args[4:] else set()
    main(int(args[0]), args[1].split(","), args[2].split(","), of_each, names)
