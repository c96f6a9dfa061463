"""Chains that a cutoff ends are what is left of whole ones by the cutoff's own rule, guess by guess; and the
rule of the native kernels is that of `nextn.cutoff`."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import isclose

import pytest
import torch
from parity.engine_steps import make_engine
from support.draft_spans import Beside
from torch import Tensor

from nextn.config import EMBEDDED, EngineConfig, model_folder
from nextn.cutoff import EDGES, Cutoff
from nextn.engine.kernels import choose_kernels
from nextn.ops.base import DrawParams
from nextn.request import Request, SamplingParams, SpeculativeParams
from nextn.sampling import sampler
from nextn.speculative.base import Drafted, DraftRequest
from nextn.speculative.draft_state import DraftState
from nextn.speculative.mtp import MTPDrafter

NATIVE = choose_kernels(EngineConfig(), torch.device("cpu")) == "cpu"
pytestmark = pytest.mark.skipif(not NATIVE, reason="no native kernels here")

TEXT = list(range(300, 340))
RATES = (0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.99)
REQUESTS = [
    (TEXT[:3], SamplingParams(max_tokens=20, temperature=0)),
    (TEXT, SamplingParams(max_tokens=15, seed=2**63 + 5, stream=1)),
    (TEXT[5:], SamplingParams(max_tokens=15, seed=4, stream=2, top_k=20, temperature=0.7)),
    (TEXT[9:], SamplingParams(max_tokens=15, seed=1, stream=3, top_p=0.9, min_p=0.01)),
    (TEXT[:20], SamplingParams(max_tokens=15, seed=6, stream=4, speculative=SpeculativeParams(num_steps=2))),
]


class Confident(MTPDrafter):
    """Whole chains, guess by guess, and the confidence of each guess. Guesses are drawn by plain torch."""

    def __init__(self, drafter: MTPDrafter) -> None:
        super().__init__(drafter.model, drafter.pool, drafter.shape, self.note, plain=True)
        self.confidence: dict[tuple[int, int], float] = {}  # of each seed, stream and position

    def note(self, logits: Tensor, draws: Sequence[DrawParams], _: object = None) -> list[int]:
        z = logits[: len(draws)].clone()
        sampler._perturb_random(z, draws)
        first, second = z.topk(2, dim=-1).values.T.tolist()
        for d, a, b in zip(draws, first, second, strict=True):
            self.confidence[d.stream, d.position] = (a - b) * (d.temperature or 1.0)
        return sampler.draw(logits, draws)


class Compared:
    """Drafts with a cutoff in one call, with one depth by depth, and whole; and compares. cutoff: of all
    requests but one."""

    def __init__(self, drafter: MTPDrafter, cutoff: Cutoff) -> None:
        assert drafter.chain_drafter
        self.cut, self.cutoff, self.whole = drafter, cutoff, Confident(drafter)
        parts = drafter.model, drafter.pool, drafter.shape
        plain = (MTPDrafter(*parts, draw, plain=True) for draw in (drafter.choose, sampler.draw))
        self.plain, self.torch, self.beside = (Beside(d) for d in (*plain, self.whole))
        self.made = self.kept = self.by_torch = 0

    def forget(self) -> None:
        pass

    def drop(self, state: DraftState) -> None:
        for drafter in (self.cut, self.plain, self.torch, self.beside):
            drafter.drop(state)

    def draft(self, request: DraftRequest) -> Drafted:
        spans = request.spans
        for span in spans:
            span.cutoff = None if span.request.params.stream == OTHER else self.cutoff
        made, plain, by_torch = (d.draft(request) for d in (self.cut, self.plain, self.torch))
        assert made.drafts == plain.drafts
        assert (made.extended, list(made.passes)) == (plain.extended, list(plain.passes))
        self.whole.confidence = {}
        whole = self.beside.draft(request, cutoff=None)
        leads = {
            (i, position - span.position): lead
            for i, span in enumerate(spans)
            for (stream, position), lead in self.whole.confidence.items()
            if stream == span.request.params.stream
        }
        if not any(close_to_an_edge(leads, i) for i in range(len(spans))):
            assert made.drafts == by_torch.drafts
            self.by_torch += 1
        others = max((span.num_steps for span in spans if span.cutoff is None), default=0)
        through = {i: span.num_steps for i, span in enumerate(spans) if span.num_steps and span.cutoff}
        for i, count in enumerate(by_hand(self.cutoff, leads, through, len(spans), others)):
            draft = made.drafts[i]
            assert list(draft.tokens) == list(whole.drafts[i].tokens)[: len(draft)]
            if i in through:
                bins, keeps = count
                assert close_to_an_edge(leads, i) or (list(draft.bins), len(draft)) == (bins, keeps)
                self.made += len(draft.bins)
                self.kept += len(draft)
            else:
                assert len(draft) == spans[i].num_steps
                assert not draft.bins
        return made


def by_hand(cutoff, leads, through, n, others):
    """(bins of the guesses made, how many are kept) of each request. others: depths that run in any case."""
    bins = {i: [] for i in range(n)}
    keeps = dict.fromkeys(range(n), 0)
    holds = dict.fromkeys(through, 1.0)
    going, depth = set(through), 0
    while going:
        worth, on = 0.0, set()
        for i in sorted(going):
            bins[i].append(bisect_right(EDGES, leads[i, depth]))
            holds[i] *= cutoff.rates[bins[i][-1]]
            if holds[i] >= cutoff.row_cost:
                keeps[i] = depth + 1
                gain = holds[i] * cutoff.mean_rate - cutoff.guess_cost
                if through[i] > depth + 1 and gain > 0.0:
                    worth += gain
                    on.add(i)
        depth += 1
        going = on if worth > cutoff.pass_cost or depth < others else set()
    return [(bins[i], keeps[i]) for i in range(n)]


OTHER = 4  # the stream of the request that says how deep its drafts go: it has no cutoff


def close_to_an_edge(leads, i):
    """Two ways to the same number, in f32: which side of an edge it lies on is not for this test to say."""
    return any(isclose(lead, e, abs_tol=1e-4) for (at, _), lead in leads.items() if at == i for e in EDGES)


@pytest.mark.parametrize(
    "cutoff",
    [
        Cutoff(RATES, row_cost=0.3, mean_rate=0.8, guess_cost=0.35, pass_cost=0.1),
        Cutoff(RATES, row_cost=0.6, mean_rate=0.8, guess_cost=0.2, pass_cost=0.9),
        Cutoff(RATES, row_cost=0.0, mean_rate=1.0, guess_cost=0.0, pass_cost=0.0),
        Cutoff(RATES, row_cost=2.0, mean_rate=1.0, guess_cost=0.0, pass_cost=0.0),
    ],
    ids=["usual", "passes cost", "all", "nothing is kept"],
)
def test_what_is_made_and_kept(cutoff: Cutoff) -> None:
    engine = make_engine(model_folder(EMBEDDED), 8, dtype="bfloat16")
    for i, (prompt, params) in enumerate(REQUESTS):
        engine.add(Request(str(i), list(prompt), params))
    compared = engine._executor.drafter = Compared(engine._executor.drafter, cutoff)
    engine._executor.plain = None
    while engine.has_work():
        engine.step()
    assert compared.made
    assert compared.by_torch
    assert (compared.kept > 0) == (cutoff.row_cost < 1.0)
    assert (compared.kept == compared.made) == (cutoff.row_cost == 0.0)
