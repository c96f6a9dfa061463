"""The rule of `nextn.cutoff` decides as the native kernels do (csrc/guesses.h): any cutoff, any chains."""

from __future__ import annotations

from itertools import count

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from parity.engine_steps import make_engine

from nextn.config import EMBEDDED, EngineConfig, model_folder
from nextn.cutoff import EDGES, CutChains, Cutoff
from nextn.engine.kernels import choose_kernels
from nextn.engine.runner import Runner
from nextn.layers.batch import Span
from nextn.models.base import Chain, ChainsRequest
from nextn.models.native import NativeModel
from nextn.ops.base import DrawParams

NATIVE = choose_kernels(EngineConfig(), torch.device("cpu")) == "cpu"
pytestmark = pytest.mark.skipif(not NATIVE, reason="no native kernels here")

# A few of the same, so that sums and products meet thresholds exactly.
CHANCES = st.one_of(st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.7, 0.9, 1.0]), st.floats(0.0, 1.0))
CUTOFFS = st.builds(
    Cutoff,
    rates=st.lists(CHANCES, min_size=len(EDGES) + 1, max_size=len(EDGES) + 1),
    row_cost=CHANCES,
    mean_rate=CHANCES,
    guess_cost=CHANCES,
    pass_cost=st.one_of(CHANCES, st.floats(0.0, 6.0)),
)
CHAINS = st.lists(st.tuples(st.integers(1, 5), st.booleans()), min_size=1, max_size=5)


@pytest.fixture(scope="module")
def runner() -> Runner:
    return make_engine(model_folder(EMBEDDED), 2, dtype="bfloat16")._executor


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cutoff=CUTOFFS, chains=CHAINS, seed=st.integers(0, 50), temperature=st.sampled_from([0.0, 0.7]))
def test_the_same_guesses_are_made_and_kept(
    runner: Runner, cutoff: Cutoff, chains: list[tuple[int, bool]], seed: int, temperature: float
) -> None:
    """chains: (num_steps, may the cutoff end it) of each."""
    model, n = runner.model, len(chains)
    assert isinstance(model, NativeModel)
    tokens = torch.randint(300, 4000, (n, 2), generator=torch.Generator().manual_seed(seed)).tolist()
    spans = [Span(t, 3, [1 + 3 * i, 2 + 3 * i, 3 + 3 * i]) for i, t in enumerate(tokens)]
    hidden = torch.randn(2 * n, model.config.hidden_size, generator=torch.Generator().manual_seed(seed))
    asked = [
        Chain(i, DrawParams(seed, i, 5, temperature, 1.0, 0.0, -1), num_steps, cut)
        for i, (num_steps, cut) in enumerate(chains)
    ]
    found, passes = model.draft_chains(
        ChainsRequest(model.batch(spans, 4), hidden, range(2 * n), asked, cutoff), runner.pool
    )
    num_steps = [steps for steps, cut in chains if cut]
    drafts = [draft for draft, (_, cut) in zip(found, chains, strict=True) if cut]
    longest = max((steps for steps, cut in chains if not cut), default=0)
    rule = CutChains(cutoff, num_steps)
    made = [0 for _ in num_steps]
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
    whole = {i: steps for i, (steps, cut) in enumerate(chains) if not cut}
    assert {i: len(found[i]) for i in whole} == whole
    every = [*made, *whole.values()]
    assert list(passes) == [sum(m > depth for m in every) for depth in range(1, max(every))]
