"""Cases of every op: they run, there is one for every op, and their weights are elsewhere each time."""

from __future__ import annotations

import itertools

import pytest
import torch

from nextn.bench.dev.micro.arena import MOST, Arena, arena_bytes
from nextn.bench.dev.micro.cases import ROUTED, Bench
from nextn.bench.dev.micro.op_clock import NAMES
from nextn.config import EMBEDDED, model_folder
from nextn.families.config import ModelConfig
from nextn.ops.reference import Reference

CFG = ModelConfig.from_folder(model_folder(EMBEDDED))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_op_runs_at_every_number_of_rows(dtype: torch.dtype) -> None:
    arena = Arena(arena_bytes(CFG, 1 << 20, 0))
    rows = (1, 3, 64)
    found = Bench(Reference(), CFG, dtype, arena, end=64).cases(rows)
    ops = {*NAMES, "feed_forward"} - {"gqa_attention", "write_kv"}  # this model has latent attention
    assert {(one.op, one.rows) for one in found} == {(name, n) for name in ops for n in rows}
    for one in found:
        result = one.case.calls[0]()
        first = result[1] if type(result) is tuple else result
        if one.op == "dispatch":
            assert len(first.place) == one.rows
        elif one.op == "write_latent":
            assert first is None
        else:
            assert torch.isfinite(first).all(), one.case.name
            assert first.shape[0] >= one.rows
        assert one.case.work.bytes > 0
    uses = {(one.op, one.what) for one in found}
    assert {
        ("linear", "head"), ("linear", "eh_proj"), ("swiglu_mlp", "dense"), ("feed_forward", ROUTED)
    } < uses  # fmt: skip
    order = [(one.op, one.what, one.rows) for one in found]
    assert len(set(order)) == len(order)
    assert order[: len(rows)] == [("linear", "attention down", n) for n in rows]


def test_the_arena() -> None:
    arena = Arena(10_000)
    sets = arena.sets(torch.float32, (3, 5), (7,))
    assert [t.shape for t in sets[0]] == [(3, 5), (7,)]
    flat = [t for one in sets for t in one]
    addresses = [t.data_ptr() for t in flat]
    assert all(b - a >= 28 for a, b in itertools.pairwise(addresses))
    assert all(address % 4 == 0 for address in addresses)
    assert all(t.isfinite().all() and 0 < t.abs().max() < 1 for t in flat)
    assert len(sets) == 10_000 // 128
    assert len(Arena(1 << 20).sets(torch.bfloat16, (4,))) == MOST
    with pytest.raises(ValueError, match="are too few for"):
        arena.sets(torch.float32, (100, 100))


def test_the_arena_does_not_fit_into_the_cache() -> None:
    assert arena_bytes(CFG, 1 << 30, 0) == 8 << 30
    largest = 4 * CFG.hidden_size * CFG.vocab_size
    assert arena_bytes(CFG, 0, 0) >= largest
    assert arena_bytes(CFG, 0, 1 << 40) == 1 << 40
