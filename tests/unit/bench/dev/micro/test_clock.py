"""Cases in turns, and the two clocks, with calls that say when they were made."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch

from nextn.bench.dev.micro import ceilings
from nextn.bench.dev.micro.call_clock import CallClock
from nextn.bench.dev.micro.ceilings import FALLBACK, cache_bytes, make_ceilings
from nextn.bench.dev.micro.clock import FEWEST, NATIVE, SWITCH, Case, by_team, measure, quiet
from nextn.bench.dev.micro.op_clock import NAMES, OpClock
from nextn.bench.dev.micro.op_work import Work
from nextn.bench.dev.micro.run import OFTEN, in_turns
from nextn.machine import data_caches
from nextn.ops.reference import Reference


def test_copies_take_turns() -> None:
    seen: list[int] = []
    case = Case("a", Work(8, 4), [lambda i=i: seen.append(i) for i in range(3)])
    case.burst(2)
    case.burst(5)
    assert seen == [0, 1, 2, 0, 1, 2, 0]


def test_median_and_rates() -> None:
    case = Case("a", Work(8, 4), [lambda: None], samples=[0.5, 9.0, 1.0, 2.0, 0.1])
    assert (case.seconds, case.bytes_per_s, case.flops_per_s) == (1.0, 8.0, 4.0)


def test_rounds_alternate() -> None:
    order: list[str] = []
    cases = [Case(name, Work(1, 1), [lambda name=name: order.append(name)]) for name in "abc"]
    begun: list[tuple[int, int]] = []
    measure(cases, 4, 60.0, lambda n, of: begun.append((n, of)))
    assert [len(case.samples) for case in cases] == [4, 4, 4]
    assert begun == [(0, 4), (1, 4), (2, 4), (3, 4)]
    changes = [a for a, b in zip(order, [*order[1:], ""], strict=True) if a != b]
    assert changes == ["a", "b", "c"] * 5  # the first time round is the warm-up


def test_time_ends_the_rounds_but_not_the_fewest() -> None:
    case = Case("a", Work(1, 1), [lambda: None])
    measure([case], 100, 0.0)
    assert len(case.samples) == FEWEST


def test_the_garbage_collector_is_off_and_comes_back() -> None:
    with quiet():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_headline_cases_come_often() -> None:
    often, others = [Case("h", Work(1, 1), [])], [Case(str(i), Work(1, 1), []) for i in range(6)]
    order = [case.name for case in in_turns(often, others)]
    assert order.count("h") == OFTEN
    assert sorted(set(order)) == ["0", "1", "2", "3", "4", "5", "h"]
    assert len(order) == OFTEN + 6


def test_native_cases_come_after_those_of_torch() -> None:
    often = [Case("n", Work(1, 1), [], team=NATIVE), Case("t", Work(1, 1), [])]
    others = [Case("N", Work(1, 1), [], team=NATIVE)] * OFTEN
    assert [case.name for case in in_turns(often, others)] == ["t", "n", "N"] * OFTEN


def test_a_pause_between_teams(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    monkeypatch.setattr("nextn.bench.dev.micro.clock.time.sleep", seen.append)
    torch_case, native = Case("t", Work(1, 1), []), Case("n", Work(1, 1), [], team=NATIVE)
    for case in by_team([torch_case, torch_case, native, native, torch_case]):
        seen.append(case.name)
    assert seen == ["t", "t", SWITCH, "n", "n", SWITCH, "t"]


def test_call_clock_puts_back_what_the_instance_held() -> None:
    class Thing:
        def __init__(self) -> None:
            self.draw = lambda n: n + 1

        def forward(self, n: int) -> int:
            return self.draw(n) * 2

    thing = Thing()
    held = thing.draw
    clock = CallClock([(thing, "forward"), (thing, "draw")])
    with clock:
        assert thing.forward(1) == 4
        assert thing.draw(1) == 2
    assert clock.calls == {"forward": 1, "draw": 1}  # the draw inside forward is forward's
    assert vars(thing) == {"draw": held}
    with clock:
        thing.draw(1)
    assert clock.calls["draw"] == 2


def test_op_clock_counts_the_outer_op_and_leaves_no_trace() -> None:
    ops, x, weight = Reference(), torch.ones(8, 4), torch.ones(6, 4)
    clock = OpClock(ops)
    with clock:
        ops.linear(x, weight)
        ops.swiglu_mlp(x, weight, torch.ones(4, 3))  # calls linear twice
        runs = ops.dispatch(torch.tensor([[0, 1], [1, 2]]), 4)
        ops.experts(x, runs, torch.ones(4, 6, 4), torch.ones(4, 4, 3))
    assert clock.calls == {"linear": 1, "swiglu_mlp": 1, "dispatch": 1, "experts": 1}
    assert clock.experts == 3
    assert clock.total == pytest.approx(sum(clock.seconds.values()))
    assert all(seconds > 0 for seconds in clock.seconds.values())
    assert not set(NAMES) & set(vars(ops))
    ops.linear(x, weight)
    assert clock.calls["linear"] == 1
    assert 0 < clock.own == clock.cost * 4 < 1e-3
    clock.reset()
    assert (clock.total, clock.experts, dict(clock.calls)) == (0, 0, {})


def test_every_op_of_the_contract_has_a_timer() -> None:
    assert set(NAMES) == {
        "linear", "rms_norm", "add_norm", "swiglu_mlp", "write_latent", "absorb", "mla_attention",
        "naive_attention", "heads_matmul", "route", "dispatch", "experts", "combine", "best_token",
        "best_of_product", "experts_with_shared", "norm_latents", "write_kv", "gqa_attention", "embed",
        "embed_beside", "uniforms", "fp8_rows",
    }  # fmt: skip


def cache(folder: Path, index: int, level: int, kind: str, size: str) -> None:
    one = folder / f"index{index}"
    one.mkdir()
    for name, text in (("level", level), ("type", kind), ("size", size)):
        (one / name).write_text(f"{text}\n")


def test_cache_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "data_caches", lambda: data_caches(tmp_path))
    assert cache_bytes(3) == FALLBACK[3]
    cache(tmp_path, 0, 1, "Instruction", "32K")
    cache(tmp_path, 1, 2, "Unified", "1024K")
    assert cache_bytes(3) == cache_bytes(2) == 1 << 20
    cache(tmp_path, 2, 3, "Unified", "32M")
    assert cache_bytes(3) == 32 << 20
    (tmp_path / "index2" / "size").write_text("?")
    assert cache_bytes(3) == 1 << 20


def test_ceilings() -> None:
    found = make_ceilings(None, dram=1 << 16, squares=(8, 16))
    cases = [*found.read, *found.caches.values(), *found.bf16[:2], *found.f32[:2]]
    for case in cases:
        case.sample()
        case.sample()
    assert {case.work.bytes for case in found.read} == {1 << 16}
    assert [case.work.flops for case in found.f32[:2]] == [2 * 8**3, 2 * 16**3]
    assert found.read_bytes_per_s == max(case.bytes_per_s for case in found.read) > 0
    assert found.unrest >= 1
    assert found.sizes["dram"] == 1 << 16
    for case in (found.bf16[2], found.f32[2]):
        case.samples.append(1e9)
    for dtype, of in ((torch.float32, found.f32), (torch.bfloat16, found.bf16), (torch.int8, found.bf16)):
        assert found.flops_per_s(dtype) == max(case.flops_per_s for case in of) > 0
