"""Chains drafted in one native call equal those of a call for each depth, whatever is in the step."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from parity.engine_steps import make_engine
from support.draft_spans import Beside
from support.toy_grammar import ToyGrammar

from nextn.config import EMBEDDED, EngineConfig, model_folder
from nextn.constraint import Constraint
from nextn.engine.engine import Engine
from nextn.engine.kernels import choose_kernels
from nextn.request import Request, SamplingParams, SpeculativeParams
from nextn.speculative import guesses
from nextn.speculative.base import Drafted, DraftRequest
from nextn.speculative.draft_state import DraftState
from nextn.speculative.mtp import MTPDrafter

NATIVE = choose_kernels(EngineConfig(), torch.device("cpu")) == "cpu"
pytestmark = pytest.mark.skipif(not NATIVE, reason="no native kernels here")

TEXT = list(range(300, 340))
# Prompts are read in chunks of 16 while others draft; one request does not draft.
MIXED = [
    (TEXT[:3], SamplingParams(max_tokens=24, temperature=0)),
    (TEXT, SamplingParams(max_tokens=9, seed=2**63 + 5, stream=2)),
    (TEXT[5:], SamplingParams(max_tokens=15, seed=4, top_k=20, speculative=SpeculativeParams(num_steps=1))),
    (TEXT[9:], SamplingParams(max_tokens=15, top_p=0.9, speculative=SpeculativeParams(num_steps=0))),
    (TEXT[:20], SamplingParams(max_tokens=20, seed=6, speculative=SpeculativeParams(3, "typical"))),
]


# Their logits change before a guess is chosen, or more than that is kept.
ASKED = [
    (TEXT[:7], SamplingParams(max_tokens=9, temperature=0, repetition_penalty=1.2)),
    (TEXT[2:], SamplingParams(max_tokens=12, seed=8, logit_bias={400: 5.0, 7: -9.0}, min_tokens=6)),
    (TEXT[:30], SamplingParams(max_tokens=11, seed=9, speculative=SpeculativeParams(3, "rejection"))),
    (TEXT[3:9], SamplingParams(max_tokens=14, seed=2, top_k=50, speculative=SpeculativeParams(2, "block"))),
    (TEXT[1:8], SamplingParams(max_tokens=13, temperature=0, constraint=Constraint("regex", ""))),
]


class Both:
    """Drafts twice, in one call where that is possible and depth by depth, and compares."""

    def __init__(self, drafter: MTPDrafter) -> None:
        assert drafter.chain_drafter
        self.whole = drafter
        plain = MTPDrafter(drafter.model, drafter.pool, drafter.shape, drafter.choose, plain=True)
        self.plain = Beside(plain)
        self.guesses = 0

    def forget(self) -> None:
        pass

    def drop(self, state: DraftState) -> None:
        self.whole.drop(state)
        self.plain.drop(state)

    def draft(self, request: DraftRequest) -> Drafted:
        made, again = (d.draft(request) for d in (self.whole, self.plain))
        assert made.drafts == again.drafts
        assert [len(d) for d in made.drafts] == [s.num_steps for s in request.spans]
        assert (made.extended, list(made.passes)) == (again.extended, list(again.passes))
        self.guesses += sum(len(d) for d in made.drafts)
        return made


def make(**options: object) -> tuple[Engine, Both]:
    engine = make_engine(model_folder(EMBEDDED), 4, dtype="bfloat16", **options)
    drafter = engine._executor.drafter
    assert isinstance(drafter, MTPDrafter)
    both = engine._executor.drafter = Both(drafter)
    engine._executor.plain = None
    return engine, both


def drafted(requests: Sequence[tuple[list[int], SamplingParams]], **options: object) -> None:
    """All steps of these requests, the last of which comes later than the others."""
    engine, both = make(**options)
    for i, (prompt, params) in enumerate(requests):
        if i == len(requests) - 1:
            for _ in range(4):
                engine.step()
        grammar = None if params.constraint is None else ToyGrammar(engine.vocab_size, 99, spread=50)
        engine.add(Request(str(i), list(prompt), params, grammar=grammar))
    while engine.has_work():
        engine.step()
    assert both.guesses


def test_requests_of_every_kind() -> None:
    drafted(MIXED, threads=2)


def test_coarse_weights_and_a_draft_vocabulary(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.json"
    tokens.write_text(json.dumps([7, *range(4000, 200, -3)]))
    options = {"speculative_draft_model_quantization": "w8a16", "speculative_token_map": str(tokens)}
    drafted(MIXED, **options)


def test_requests_whose_guesses_take_more_than_a_draw() -> None:
    """Alone, and in between others."""
    drafted(ASKED, threads=2)
    drafted([*MIXED[:2], *ASKED, *MIXED[2:]], threads=1)


def test_a_guess_that_fails_ends_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, both = make()
    engine._executor.drafter = both.whole

    def fail(*args: object) -> None:
        raise RuntimeError("no guess")

    monkeypatch.setattr(guesses, "choose", fail)
    engine.add(Request("a", *ASKED[0]))
    (out,) = engine.step()
    assert out.error == "the request failed in drafting: RuntimeError: no guess"
    assert not engine.has_work()
