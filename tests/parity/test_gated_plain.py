"""A gate with plain torch: shorter chains, the same text, with one NextN layer and with several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from parity.engine_steps import make_engine, run
from parity.oracle import random_checkpoint
from support.checkpoints import write_checkpoint
from torch import Tensor

from nextn.config import EMBEDDED, model_folder
from nextn.gate import Gate
from nextn.request import SamplingParams, SpeculativeParams
from nextn.speculative.committed import Committed
from nextn.speculative.drafter import ChooseDraft, Drafted, MTPDrafter
from nextn.speculative.layered import LayeredDrafter

TEXT = list(range(5, 45))  # in the vocabulary of both models
RATES = (0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.99)
SURE = Gate(RATES, keep=0.9, usual=0.8, each=0.0, passing=0.0)
WORK = {
    "greedy": (TEXT[:9], SamplingParams(max_tokens=24, temperature=0, ignore_eos=True)),
    "seeded": (TEXT, SamplingParams(max_tokens=20, seed=3, stream=1, ignore_eos=True)),
    "filtered": (TEXT[4:], SamplingParams(max_tokens=20, seed=4, top_k=20, temperature=0.7, ignore_eos=True)),
}
PENALIZED = SamplingParams(max_tokens=20, temperature=0, ignore_eos=True, repetition_penalty=1.3)
JUDGED = SamplingParams(max_tokens=20, seed=5, ignore_eos=True, speculative=SpeculativeParams(3, "rejection"))


class Gating:
    """A drafter whose chains are gated."""

    def __init__(self, drafter: MTPDrafter, gate: Gate) -> None:
        assert drafter.gates
        self.drafter, self.gate, self.forget = drafter, gate, drafter.forget
        self.wanted = self.made = self.kept = 0
        self.whole: list[bool] = []  # of those that are not gated

    def propose(self, hidden: Tensor, work: Sequence[Committed], choose: ChooseDraft) -> Drafted:
        work = [replace(w, gate=self.gate) for w in work]
        found = self.drafter.propose(hidden, work, choose)
        deepest = 0
        for w, draft in zip(work, found.drafts, strict=True):
            if not w.want:
                continue
            if draft.bins:
                self.wanted, self.made = self.wanted + w.want, self.made + len(draft.bins)
                self.kept += len(draft)
                assert len(draft.bins) <= len(draft) + 1
            else:
                self.whole.append(len(draft) == min(w.want, self.gate.ungated))
            deepest = max(deepest, len(draft.bins) or len(draft))
        assert len(found.passes) == max(0, deepest - 1)
        return found


def gated(folder: Path, gate: Gate, drafts: int = 4) -> tuple[Gating, dict[str, list[int]]]:
    engine = make_engine(folder, drafts, kernel_backend="reference")
    gating = Gating(engine._executor.drafter, gate)  # type: ignore[arg-type]
    engine._executor.drafter = gating
    texts = run(engine, WORK)
    return gating, {rid: trace.tokens for rid, trace in texts.items()}


def texts(folder: Path) -> dict[str, list[int]]:
    plain = run(make_engine(folder, 0, kernel_backend="reference"), WORK)
    return {rid: trace.tokens for rid, trace in plain.items()}


def test_chains_are_shorter_and_texts_the_same() -> None:
    folder = model_folder(EMBEDDED)
    gating, found = gated(folder, SURE)
    assert found == texts(folder)
    assert 0 < gating.kept < gating.made < gating.wanted
    assert not gating.whole


def test_a_gate_that_lets_all_through() -> None:
    gating, _ = gated(model_folder(EMBEDDED), Gate(RATES, keep=0.0, usual=1.0, each=0.0, passing=0.0))
    assert gating.kept == gating.made == gating.wanted


@pytest.mark.parametrize("params", [PENALIZED, JUDGED], ids=["penalized", "judged"])
def test_a_request_whose_guesses_take_more_than_a_draw_is_not_gated(params: SamplingParams) -> None:
    engine = make_engine(model_folder(EMBEDDED), 3, kernel_backend="reference")
    gating = engine._executor.drafter = Gating(engine._executor.drafter, SURE)
    run(engine, {**WORK, "other": (TEXT[2:20], params)})
    assert gating.whole
    assert all(gating.whole)
    assert gating.kept < gating.wanted


def test_several_layers(tmp_path: Path) -> None:
    config, tensors = random_checkpoint({"num_nextn_predict_layers": 3}, seed=4)
    folder = write_checkpoint(tmp_path, config, tensors)
    # Random weights lead by little.
    gating, found = gated(folder, Gate((0.9, *(1.0,) * 8), keep=0.85, usual=1.0, each=0.0, passing=0.0))
    assert isinstance(gating.drafter, LayeredDrafter)
    assert found == texts(folder)
    assert 0 < gating.kept < gating.made
