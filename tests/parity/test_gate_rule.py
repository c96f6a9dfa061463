"""The rule of `nextn.gate` decides as the native kernels do (csrc/guesses.h): any gate, any chains."""

from __future__ import annotations

from itertools import count

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from parity.engine_steps import make_engine

from nextn.config import EMBEDDED, EngineConfig, model_folder
from nextn.engine.model import choose_kernels
from nextn.engine.runner import Runner
from nextn.gate import EDGES, Gate, GatedChains
from nextn.layers.batch import Span
from nextn.models.native import NativeDeepseekV3
from nextn.ops.base import Drawn

NATIVE = choose_kernels(EngineConfig(), torch.device("cpu")) == "cpu"
pytestmark = pytest.mark.skipif(not NATIVE, reason="no native kernels here")

# A few of the same, so that sums and products meet thresholds exactly.
CHANCES = st.one_of(st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.7, 0.9, 1.0]), st.floats(0.0, 1.0))
GATES = st.builds(
    Gate,
    rates=st.lists(CHANCES, min_size=len(EDGES) + 1, max_size=len(EDGES) + 1),
    keep=CHANCES,
    usual=CHANCES,
    each=CHANCES,
    passing=st.one_of(CHANCES, st.floats(0.0, 6.0)),
)
CHAINS = st.lists(st.tuples(st.integers(1, 5), st.booleans()), min_size=1, max_size=5)


@pytest.fixture(scope="module")
def runner() -> Runner:
    return make_engine(model_folder(EMBEDDED), 2, dtype="bfloat16")._executor


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(gate=GATES, chains=CHAINS, seed=st.integers(0, 50), temperature=st.sampled_from([0.0, 0.7]))
def test_the_same_guesses_are_made_and_kept(
    runner: Runner, gate: Gate, chains: list[tuple[int, bool]], seed: int, temperature: float
) -> None:
    """chains: (guesses wanted, gated) of each."""
    model, n = runner.model, len(chains)
    assert isinstance(model, NativeDeepseekV3)
    tokens = torch.randint(300, 4000, (n, 2), generator=torch.Generator().manual_seed(seed)).tolist()
    spans = [Span(t, 3, [1 + 3 * i, 2 + 3 * i, 3 + 3 * i]) for i, t in enumerate(tokens)]
    hidden = torch.randn(2 * n, model.config.hidden_size, generator=torch.Generator().manual_seed(seed))
    draws = [Drawn(seed, i, 5, temperature, 1.0, 0.0, -1, wanted) for i, (wanted, _) in enumerate(chains)]
    gated = [g for _, g in chains]
    found = model.chains(
        model.batch(spans, 4), hidden, range(2 * n), runner.pool, range(n), draws, lambda *_: [], 0,
        gate, gated,
    )  # fmt: skip
    wanted = [want for want, g in chains if g]
    drafts = [draft for draft, g in zip(found, gated, strict=True) if g]
    longest = max((want for want, g in chains if not g), default=0)
    rule = GatedChains(gate, wanted)
    made = [0 for _ in wanted]
    for depth in count():
        going = rule.going
        if not going:
            break
        for i in going:
            made[i] += 1
        assert all(len(drafts[i].bins) > depth for i in going), (
            "the kernels ended a chain that the rule does not"
        )
        rule.guessed(bytes(drafts[i].bins[depth] for i in going), longest > depth + 1)
    assert [len(d.bins) for d in drafts] == made
    assert [len(d.tokens) for d in drafts] == rule.kept
    assert [len(d) for d, g in zip(found, gated, strict=True) if not g] == [w for w, g in chains if not g]
