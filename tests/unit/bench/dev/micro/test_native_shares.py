"""Shares of the arithmetic in a native model's step, against the count of its operations by hand."""

from __future__ import annotations

import pytest

from nextn.bench.dev.micro.arithmetic import FLOATS, PAIRS, TILES
from nextn.bench.dev.micro.native_shares import step_shares
from nextn.bench.dev.micro.step_work import Step, step_work
from nextn.config import EMBEDDED, model_folder
from nextn.families.config import ModelConfig
from nextn.models.native import NativeModel
from nextn.ops.cpu.interface import BF16
from nextn.ops.cpu.library import NoLibrary, library

CFG = ModelConfig.from_folder(model_folder(EMBEDDED))
DECODE = Step(rows=1, end=100, chosen=1, experts=22.0)
BATCH = Step(rows=16, end=100, chosen=16, experts=80.0, requests=16)
VERIFY = Step(rows=3, end=100, chosen=3, experts=50.5, drafts=2, extended=1.5)


@pytest.fixture(autouse=True)
def _kernels() -> None:
    try:
        library()
    except NoLibrary as e:
        pytest.skip(f"no native kernels: {e}")


def router_operations(rows: float) -> float:
    """Of the panels, whose outputs are a multiple of 16."""
    return 2 * rows * CFG.hidden_size * -(-CFG.n_routed_experts // 16) * 16


@pytest.mark.parametrize(("step", "passes"), [(DECODE, 0.0), (BATCH, 0.0), (VERIFY, 1.5 + 1)])
def test_routers_are_f32_and_the_rest_is_in_tiles(step: Step, passes: float) -> None:
    model = NativeModel(CFG, 1, 1)
    moe = CFG.num_hidden_layers - CFG.first_k_dense_replace
    routers = moe * router_operations(step.rows) + router_operations(passes)
    padding = routers * (1 - CFG.n_routed_experts / (-(-CFG.n_routed_experts // 16) * 16))
    all_operations = step_work(CFG, step, 2).flops + padding
    found = step_shares(model, step, (TILES, PAIRS, FLOATS))
    assert set(found) == {TILES, FLOATS}
    assert found[FLOATS] == pytest.approx(routers / all_operations, rel=1e-3)
    assert sum(found.values()) == pytest.approx(1)


def test_one_kind_of_arithmetic_has_all() -> None:
    assert step_shares(NativeModel(CFG, 1, 1), VERIFY, (FLOATS,)) == {FLOATS: pytest.approx(1)}


def test_weights_with_a_way_of_their_own() -> None:
    model = NativeModel(CFG, 0, 1, way=lambda kind: 2 if kind == BF16 else 0)
    found = step_shares(model, DECODE, (TILES, PAIRS, FLOATS))
    heads, width = CFG.num_attention_heads, CFG.latent_dim + CFG.kv_lora_rank
    attention = CFG.num_hidden_layers * 2 * 100 * heads * width
    assert set(found) == {TILES, PAIRS, FLOATS}
    assert found[TILES] / found[PAIRS] == pytest.approx(
        attention
        / (step_work(CFG, DECODE, 2).flops - attention - 11 * 2 * CFG.hidden_size * CFG.n_routed_experts),
        rel=1e-3,
    )
