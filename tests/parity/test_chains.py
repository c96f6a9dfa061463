"""Chains drafted in one native call equal those of a call for each depth, whatever is in the step."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from parity.engine_steps import make_engine
from torch import Tensor

from nextn.config import EMBEDDED, EngineConfig, model_folder
from nextn.engine.model import choose_kernels
from nextn.models.base import Chains
from nextn.request import Request, SamplingParams, SpeculativeParams
from nextn.speculative.committed import Committed
from nextn.speculative.drafter import ChooseDraft, Drafted, MTPDrafter

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


class Both:
    """Drafts twice, and compares."""

    def __init__(self, drafter: MTPDrafter) -> None:
        assert isinstance(drafter.model, Chains)
        self.whole, self.plain = drafter, MTPDrafter(drafter.model, drafter.pool, drafter.shape)
        self.in_one_call: list[bool] = []
        self.guesses = 0

    def forget(self, rids: Sequence[str]) -> None:
        self.whole.forget(rids)
        self.plain.forget(rids)

    def propose(self, hidden: Tensor, work: Sequence[Committed], choose: ChooseDraft) -> Drafted:
        wanted = [(i, w.want) for i, w in enumerate(work) if w.want]
        self.in_one_call.append(choose.draws(wanted) is not None)
        made, again = (d.propose(hidden, work, choose) for d in (self.whole, self.plain))
        assert [list(d.tokens) for d in made.drafts] == [list(d.tokens) for d in again.drafts]
        assert [len(d) for d in made.drafts] == [w.want for w in work]
        assert (made.extended, list(made.passes)) == (again.extended, list(again.passes))
        self.guesses += sum(len(d) for d in made.drafts)
        return made


def drafted(requests: Sequence[tuple[list[int], SamplingParams]], **options: object) -> Both:
    """All steps of these requests, the last of which comes later than the others."""
    engine = make_engine(model_folder(EMBEDDED), 4, dtype="bfloat16", **options)
    drafter = engine._executor.drafter
    assert isinstance(drafter, MTPDrafter)
    both = engine._executor.drafter = Both(drafter)
    for i, (prompt, params) in enumerate(requests):
        if i == len(requests) - 1:
            for _ in range(4):
                engine.step()
        engine.add(Request(str(i), list(prompt), params))
    while engine.has_work():
        engine.step()
    assert both.guesses
    return both


@pytest.mark.parametrize("threads", [1, 2])
def test_requests_of_every_kind(threads: int) -> None:
    assert all(drafted(MIXED, threads=threads).in_one_call)


def test_coarse_weights_and_a_draft_vocabulary(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.json"
    tokens.write_text(json.dumps([7, *range(4000, 200, -3)]))
    options = {"speculative_draft_model_quantization": "w8a16", "speculative_token_map": str(tokens)}
    assert all(drafted(MIXED, **options).in_one_call)


def test_a_request_whose_logits_change() -> None:
    """While it is there, nobody's chains are drafted in one call; afterwards they are."""
    penalized = SamplingParams(max_tokens=5, temperature=0, repetition_penalty=1.2)
    used = drafted([*MIXED, (TEXT[:7], penalized)]).in_one_call
    assert not all(used)
    assert used[-1]
