"""A cutoff with plain torch: shorter chains, the same text, with one NextN layer and with several."""

from __future__ import annotations

from pathlib import Path

from parity.engine_steps import make_engine, run
from parity.oracle import random_checkpoint
from support.checkpoints import write_checkpoint

from nextn.config import EMBEDDED, model_folder
from nextn.cutoff import Cutoff
from nextn.request import SamplingParams, SpeculativeParams
from nextn.speculative.base import Drafted, DraftRequest
from nextn.speculative.layered import LayeredDrafter
from nextn.speculative.mtp import MTPDrafter

TEXT = list(range(5, 45))  # in the vocabulary of both models
RATES = (0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.99)
SURE = Cutoff(RATES, row_cost=0.9, mean_rate=0.8, guess_cost=0.0, pass_cost=0.0)
WORK = {
    "greedy": (TEXT[:9], SamplingParams(max_tokens=16, temperature=0, ignore_eos=True)),
    "seeded": (TEXT, SamplingParams(max_tokens=12, seed=3, stream=1, ignore_eos=True)),
    "filtered": (TEXT[4:], SamplingParams(max_tokens=12, seed=4, top_k=20, temperature=0.7, ignore_eos=True)),
}
PENALIZED = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True, repetition_penalty=1.3)
JUDGED = SamplingParams(max_tokens=12, seed=5, ignore_eos=True, speculative=SpeculativeParams(3, "rejection"))


class Cutting:
    """A drafter whose chains have a cutoff."""

    def __init__(self, drafter: MTPDrafter, cutoff: Cutoff) -> None:
        assert drafter.cuts
        self.drafter, self.cutoff = drafter, cutoff
        self.drop, self.forget = drafter.drop, drafter.forget
        self.wanted = self.made = self.kept = 0
        self.whole: list[bool] = []  # of those that it does not end
        self.penalized: list[bool] = []  # and have a penalty

    def draft(self, request: DraftRequest) -> Drafted:
        for span in request.spans:
            span.cutoff = self.cutoff
        found = self.drafter.draft(request)
        deepest = 0
        for span, draft in zip(request.spans, found.drafts, strict=True):
            if not span.num_steps:
                continue
            if draft.bins:
                self.wanted, self.made = self.wanted + span.num_steps, self.made + len(draft.bins)
                self.kept += len(draft)
                assert len(draft.bins) <= len(draft) + 1
            else:
                others = self.penalized if span.request.params.repetition_penalty != 1.0 else self.whole
                others.append(len(draft) == min(span.num_steps, self.cutoff.num_steps))
            deepest = max(deepest, len(draft.bins) or len(draft))
        assert len(found.passes) == max(0, deepest - 1)
        return found


def cut(folder: Path, cutoff: Cutoff, num_steps: int = 4) -> tuple[Cutting, dict[str, list[int]]]:
    engine = make_engine(folder, num_steps, kernel_backend="reference")
    cutting = Cutting(engine._executor.drafter, cutoff)  # type: ignore[arg-type]
    engine._executor.drafter = cutting
    texts = run(engine, WORK)
    return cutting, {rid: trace.tokens for rid, trace in texts.items()}


def texts(folder: Path) -> dict[str, list[int]]:
    plain = run(make_engine(folder, 0, kernel_backend="reference"), WORK)
    return {rid: trace.tokens for rid, trace in plain.items()}


def test_chains_are_shorter_and_texts_the_same() -> None:
    folder = model_folder(EMBEDDED)
    cutting, found = cut(folder, SURE)
    assert found == texts(folder)
    assert 0 < cutting.kept < cutting.made < cutting.wanted
    assert not cutting.whole


def test_a_cutoff_that_lets_all_through() -> None:
    cutting, _ = cut(
        model_folder(EMBEDDED), Cutoff(RATES, row_cost=0.0, mean_rate=1.0, guess_cost=0.0, pass_cost=0.0)
    )
    assert cutting.kept == cutting.made == cutting.wanted


def test_a_request_whose_guesses_take_more_than_a_draw_has_no_cutoff() -> None:
    engine = make_engine(model_folder(EMBEDDED), 3, kernel_backend="reference")
    cutting = engine._executor.drafter = Cutting(engine._executor.drafter, SURE)
    run(engine, {**WORK, "penalized": (TEXT[2:20], PENALIZED), "judged": (TEXT[2:20], JUDGED)})
    for others in cutting.whole, cutting.penalized:
        assert others
        assert all(others)
    assert cutting.kept < cutting.wanted


def test_several_layers(tmp_path: Path) -> None:
    config, tensors = random_checkpoint({"num_nextn_predict_layers": 3}, seed=4)
    folder = write_checkpoint(tmp_path, config, tensors)
    # Random weights lead by little.
    cutting, found = cut(
        folder, Cutoff((0.9, *(1.0,) * 8), row_cost=0.85, mean_rate=1.0, guess_cost=0.0, pass_cost=0.0)
    )
    assert isinstance(cutting.drafter, LayeredDrafter)
    assert found == texts(folder)
    assert 0 < cutting.kept < cutting.made
