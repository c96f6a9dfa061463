"""Chains that a gate cuts short are what is left of whole ones by the gate's own rule, guess by guess; and
the rule of the native kernels is that of `nextn.gate`."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from math import isclose

import pytest
import torch
from parity.engine_steps import make_engine
from torch import Tensor

from nextn.config import EMBEDDED, EngineConfig, model_folder
from nextn.engine.model import choose_kernels
from nextn.engine.runner import _ChooseDraft
from nextn.gate import EDGES, Gate
from nextn.models.base import Chains
from nextn.ops.base import Drawn
from nextn.request import Request, SamplingParams, SpeculativeParams
from nextn.sampling import sampler
from nextn.speculative.committed import Committed
from nextn.speculative.drafter import ChooseDraft, Drafted, MTPDrafter

NATIVE = choose_kernels(EngineConfig(), torch.device("cpu")) == "cpu"
pytestmark = pytest.mark.skipif(not NATIVE, reason="no native kernels here")

TEXT = list(range(300, 340))
RATES = (0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.99)
REQUESTS = [
    (TEXT[:3], SamplingParams(max_tokens=40, temperature=0)),
    (TEXT, SamplingParams(max_tokens=30, seed=2**63 + 5, stream=2)),
    (TEXT[5:], SamplingParams(max_tokens=30, seed=4, top_k=20, temperature=0.7)),
    (TEXT[9:], SamplingParams(max_tokens=30, seed=1, top_p=0.9, min_p=0.01)),
    (TEXT[:20], SamplingParams(max_tokens=30, seed=6, speculative=SpeculativeParams(num_steps=2))),
]


class Leading:
    """What chooses guesses one by one; it keeps by how much each led."""

    def __init__(self, choose: _ChooseDraft) -> None:
        self.choose, self.leads = choose, {}

    def __call__(
        self, logits: Tensor, asked: Sequence[tuple[int, Sequence[int]]], k: int
    ) -> list[list[tuple[int, float]]]:
        z = logits[: len(asked)].clone()
        draws = [self.choose.drawn(i, 1)[0] for i, _ in asked]
        draws = [
            d._replace(position=d.position + len(path)) for d, (_, path) in zip(draws, asked, strict=True)
        ]
        sampler._perturb_random(z, draws)
        first, second = z.topk(2, dim=-1).values.T.tolist()
        for (i, path), d, a, b in zip(asked, draws, first, second, strict=True):
            scale = d.temperature if d.temperature else 1.0
            self.leads[i, len(path)] = (a - b) * scale
        return self.choose(logits, asked, k)

    def drawn(self, index: int, count: int):
        return self.choose.drawn(index, count)


class PlainDraws:
    """Guesses drawn by plain torch, whatever the engine draws with."""

    def __init__(self, choose: _ChooseDraft) -> None:
        self.choose, self.drawn = choose, choose.drawn

    def __call__(
        self, logits: Tensor, asked: Sequence[tuple[int, Sequence[int]]], k: int
    ) -> list[list[tuple[int, float]]]:
        return self.choose(logits, asked, k)

    def draw(self, logits: Tensor, draws: Sequence[Drawn]) -> tuple[list[int], list[float]]:
        confidence: list[float] = []
        return sampler.draw(logits, draws, confidence), confidence


class Gated:
    """Drafts with a gate in one call, with one depth by depth, and whole; and compares. gate: of all
    requests but one."""

    def __init__(self, drafter: MTPDrafter, gate: Gate) -> None:
        assert isinstance(drafter.model, Chains)
        self.gated, self.plain, self.torch, self.whole = (
            drafter,
            *(MTPDrafter(drafter.model, drafter.pool, drafter.shape) for _ in range(3)),
        )
        self.gate = gate
        self.made = self.kept = self.by_torch = 0

    def forget(self, rids: Sequence[str]) -> None:
        for drafter in (self.gated, self.plain, self.torch, self.whole):
            drafter.forget(rids)

    def propose(self, hidden: Tensor, work: Sequence[Committed], choose: ChooseDraft) -> Drafted:
        for w in work:
            w.gate = None if w.rid == OTHER else self.gate
        made = self.gated.propose(hidden, work, choose)
        assert isinstance(choose, _ChooseDraft)
        plain = self.plain.propose(hidden, work, choose)
        assert [(list(d.tokens), d.bins) for d in made.drafts] == [
            (list(d.tokens), d.bins) for d in plain.drafts
        ]
        assert (made.extended, list(made.passes)) == (plain.extended, list(plain.passes))
        by_torch = self.torch.propose(hidden, work, PlainDraws(choose))
        leading = Leading(choose)
        whole = self.whole.propose(hidden, [replace(w, gate=None) for w in work], leading)
        if not any(close_to_an_edge(leading.leads, i) for i in range(len(work))):
            assert [(list(d.tokens), d.bins) for d in made.drafts] == [
                (list(d.tokens), d.bins) for d in by_torch.drafts
            ]
            self.by_torch += 1
        wanted = [w.want if w.gate is None else 0 for w in work]
        through = {i: w.want for i, w in enumerate(work) if w.want and w.gate and choose.drawn(i, 1)[1]}
        for i, count in enumerate(by_hand(self.gate, leading.leads, through, len(work), any(wanted))):
            draft = made.drafts[i]
            assert list(draft.tokens) == list(whole.drafts[i].tokens)[: len(draft)]
            if i in through:
                bins, keeps = count
                assert close_to_an_edge(leading.leads, i) or (list(draft.bins), len(draft)) == (bins, keeps)
                self.made += len(draft.bins)
                self.kept += len(draft)
            else:
                assert len(draft) == work[i].want
                assert not draft.bins
        return made


def by_hand(gate, leads, through, n, others):
    """(bins of the guesses made, how many are kept) of each request."""
    bins = {i: [] for i in range(n)}
    keeps = dict.fromkeys(range(n), 0)
    holds = dict.fromkeys(through, 1.0)
    going, depth = set(through), 0
    while going:
        worth, on = 0.0, set()
        for i in sorted(going):
            bins[i].append(bisect_right(EDGES, leads[i, depth]))
            holds[i] *= gate.rates[bins[i][-1]]
            if holds[i] >= gate.keep:
                keeps[i] = depth + 1
                gain = holds[i] * gate.usual - gate.each
                if through[i] > depth + 1 and gain > 0.0:
                    worth += gain
                    on.add(i)
        depth += 1
        still_others = others and depth < OTHERS
        going = on if worth > gate.passing or still_others else set()
    return [(bins[i], keeps[i]) for i in range(n)]


# The request that says how many drafts it wants, which is not gated, and how many these are.
OTHER, OTHERS = str(len(REQUESTS) - 1), 2


def close_to_an_edge(leads, i):
    """Two ways to the same number, in f32: which side of an edge it lies on is not for this test to say."""
    return any(isclose(lead, e, abs_tol=1e-4) for (at, _), lead in leads.items() if at == i for e in EDGES)


@pytest.mark.parametrize(
    "gate",
    [
        Gate(RATES, keep=0.3, usual=0.8, each=0.35, passing=0.1),
        Gate(RATES, keep=0.6, usual=0.8, each=0.2, passing=0.9),
        Gate(RATES, keep=0.0, usual=1.0, each=0.0, passing=0.0),
        Gate(RATES, keep=2.0, usual=1.0, each=0.0, passing=0.0),
    ],
    ids=["usual", "passes cost", "all", "nothing is kept"],
)
def test_what_is_made_and_kept(gate: Gate) -> None:
    engine = make_engine(model_folder(EMBEDDED), 8, dtype="bfloat16")
    for i, (prompt, params) in enumerate(REQUESTS):
        engine.add(Request(str(i), list(prompt), params))
    gated = engine._executor.drafter = Gated(engine._executor.drafter, gate)
    while engine.has_work():
        engine.step()
    assert gated.made
    assert gated.by_torch
    assert (gated.kept > 0) == (gate.keep < 1.0)
    assert (gated.kept == gated.made) == (gate.keep == 0.0)
