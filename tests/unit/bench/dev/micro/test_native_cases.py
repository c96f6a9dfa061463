"""Cases of the native kernels: they run, with the work of the ops beside them, and read what they say."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from support.checkpoints import gqa_config

from nextn.bench.dev.micro.arena import Arena, arena_bytes
from nextn.bench.dev.micro.arithmetic import FLOATS, NATIVE
from nextn.bench.dev.micro.cases import ROUTED, Bench, OpCase
from nextn.bench.dev.micro.clock import NATIVE as NATIVE_TEAM
from nextn.bench.dev.micro.formats import FORMATS
from nextn.bench.dev.micro.native_cases import NativeBench, moved
from nextn.bench.dev.micro.native_pool import NativeCall, NativePool, native_pool
from nextn.bench.dev.micro.op_work import Work
from nextn.bench.dev.micro.routing import Routing
from nextn.config import EMBEDDED, model_folder
from nextn.families.config import ModelConfig
from nextn.ops.cpu.interface import E4M3, INT8, Q8_0
from nextn.ops.cpu.weights import PackedWeight
from nextn.ops.reference import Reference

CFG = ModelConfig.from_folder(model_folder(EMBEDDED))
GROUPED = ModelConfig.from_dict(
    gqa_config("Qwen3ForCausalLM", vocab_size=512, hidden_size=128, head_dim=32, intermediate_size=96)
)
ROWS = (1, 3, 64)


@pytest.fixture(scope="module")
def pool() -> NativePool:
    made = native_pool(2)
    if made is None:
        pytest.skip("no native kernels")
    return made


@pytest.fixture(scope="module")
def arena() -> Arena:
    return Arena(arena_bytes(CFG, 1 << 20, 1 << 25))


@pytest.fixture
def bench(pool: NativePool, arena: Arena) -> NativeBench:
    return NativeBench(pool, CFG, arena, end=64)


def result(one: OpCase) -> torch.Tensor:
    """Of the first call; finite."""
    call = one.case.calls[0]
    assert isinstance(call, NativeCall)
    call()
    out = call.kept[-1]
    assert isinstance(out, torch.Tensor)
    assert out.isfinite().all(), one.case.name
    return out


def test_every_kernel_runs_at_every_number_of_rows(bench: NativeBench) -> None:
    for one in (*bench.cases(ROWS), *bench.headline((1, 3))):
        out = result(one)
        assert out.any(), one.case.name
        assert out.shape[0] == one.rows
        assert (one.backend, one.case.team) == ("cpu", NATIVE_TEAM)


def test_each_has_its_op_beside_it(bench: NativeBench, arena: Arena) -> None:
    ops = Bench(Reference(), CFG, torch.bfloat16, arena, end=64).cases(ROWS)
    work = {(one.op, one.what, one.shape, one.rows): one.case.work for one in ops}
    found = bench.cases(ROWS)
    for one in found:
        assert one.case.work == work[one.op, one.what, one.shape, one.rows]
    assert {(one.op, one.what) for one in found} == {
        ("linear", "attention down"), ("linear", "query up"), ("linear", "attention out"), ("linear", "head"),
        ("linear", "eh_proj"), ("mla_attention", "one request"), ("swiglu_mlp", "dense"),
        ("swiglu_mlp", "shared expert"), ("feed_forward", ROUTED),
    }  # fmt: skip


def test_grouped_queries(pool: NativePool, arena: Arena) -> None:
    ops = Bench(Reference(), GROUPED, torch.bfloat16, arena, end=64).cases(ROWS)
    for op in ops:
        op.case.calls[0]()
    work = {(one.op, one.what, one.shape, one.rows): one.case.work for one in ops}
    found = NativeBench(pool, GROUPED, arena, end=64).cases(ROWS)
    for one in found:
        assert one.case.work == work[one.op, one.what, one.shape, one.rows]
        result(one)
    assert {(one.op, one.what) for one in found} == {
        ("linear", "queries, keys, values"), ("linear", "attention out"), ("linear", "head"),
        ("gqa_attention", "one request"), ("swiglu_mlp", "dense"),
    }  # fmt: skip


def test_weights_are_elsewhere_each_time(bench: NativeBench) -> None:
    results = []
    for call in bench.linear(1, "any", 4096, 256).case.calls[:3]:
        assert isinstance(call, NativeCall)
        call()
        results.append(call.kept[-1].clone())  # type: ignore[attr-defined]
    assert not torch.equal(results[0], results[1])
    assert not torch.equal(results[1], results[2])


def test_bytes_of_the_headline(bench: NativeBench) -> None:
    found = {one.weights: one.case.work.bytes for one in bench.headline((1,))}
    rows = 2 * (2048 + 4096)
    assert found == {
        "bfloat16": 2 * 4096 * 2048 + rows,
        "float8_e4m3fn": 4096 * 2048 + 4 * 4096 * 2048 // 128 + rows,
        "int8": 4096 * 2048 + 4 * 4096 + rows,
    }


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_has_the_bytes_of_its_panels(bench: NativeBench, pool: NativePool, name: str) -> None:
    one = FORMATS[name]
    made = dataclasses.replace(bench, format=one)
    case = made.linear(3, "any", 64, 512)
    scales = {E4M3: 4 * 64 * 512 // 128, INT8: 4 * 64}.get(one.kind, 0)
    stored = 64 * pool.library.nx_output_bytes(one.kind, 512, one.block) + scales
    assert case.case.work == Work(stored + 2 * 3 * (512 + 64), 2 * 3 * 512 * 64)
    assert case.weights == one.name
    assert sum(case.shares.values()) == pytest.approx(1)
    for found in (case, made.mlp(2, "any", 256)):
        assert result(found).any()


def test_inputs_that_are_no_whole_blocks_are_in_bf16(bench: NativeBench) -> None:
    made = dataclasses.replace(bench, format=FORMATS["Q4_K"])
    assert made.linear(1, "any", 64, 320).weights == "bfloat16"
    assert made.mlp(1, "any", 96).weights == "Q4_K, bfloat16"  # gate and up of 256 inputs, down of 96
    assert {one.weights for one in made.headline((1,))} == {"bfloat16", "float8_e4m3fn", "int8", "Q4_K"}
    assert [one.weights for one in bench.headline((1,))] == ["bfloat16", "float8_e4m3fn", "int8"]


def test_the_way_of_a_kind_goes_into_its_weights(bench: NativeBench) -> None:
    made = dataclasses.replace(bench, format=FORMATS["Q8_0"], way=lambda kind: 3 if kind == Q8_0 else 0)
    ((weight,), *_) = made.weights((64, 512, 1))
    assert weight.way == 3
    assert made.linear(1, "any", 64, 512).shares == {FLOATS: 1.0}


def test_what_the_kernels_are_able_to(pool: NativePool) -> None:
    assert FLOATS in pool.able
    for name in NATIVE:
        assert (pool.multiply(name, 2) > 0) == (name in pool.able)
    assert pool.multiply(FLOATS, 6) == 3 * pool.multiply(FLOATS, 2)


def test_a_moved_weight_is_the_same(pool: NativePool) -> None:
    x, y, z = torch.randn(3, 40).bfloat16(), torch.zeros(3, 32), torch.ones(3, 32)
    weight = PackedWeight(32, 40, E4M3, block=8)
    weight.place(torch.randn(32, 40).to(torch.float8_e4m3fn), scale=torch.rand(32, 5))
    assert weight.scales is not None
    panels, scales = weight.data.clone(), weight.scales.clone()
    copy = moved(weight.struct, panels, scales)
    pool.library.nx_linear(pool.handle, x.data_ptr(), 3, weight.struct, y.data_ptr())
    weight.data.zero_()
    pool.library.nx_linear(pool.handle, x.data_ptr(), 3, copy, z.data_ptr())
    assert y.any()
    assert torch.equal(y, z)


@pytest.mark.parametrize("rows", [1, 5])
def test_experts_that_the_kernel_chooses_are_those_counted(bench: NativeBench, rows: int) -> None:
    routing, top_k = Routing(CFG, rows), CFG.num_experts_per_tok
    calls = bench.routed(rows).case.calls
    per_input = len(calls) // len(routing.inputs)
    distinct = 0
    for call in calls[::per_input]:
        assert isinstance(call, NativeCall)
        ids, weights = torch.full((rows, top_k), -1, dtype=torch.int32), torch.zeros(rows, top_k)
        call.function(*call.arguments[:-2], ids.data_ptr(), weights.data_ptr())
        distinct += len(ids.unique())
    assert distinct / len(routing.inputs) == routing.distinct
    assert routing.distinct == top_k if rows == 1 else routing.distinct > top_k


@pytest.mark.parametrize("size", [0, 511, 512, 100_000, (3 << 20) + 100])
def test_read_adds_up_whole_pieces(pool: NativePool, size: int) -> None:
    data = torch.zeros(size, dtype=torch.uint8)
    data[::8] = 1
    assert pool.read(data) == size // 512 * 64
