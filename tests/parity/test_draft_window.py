"""What is left of a drafter that did not run for a while: it catches up with a window of positions, which is
nearly as good as all of them, and never shows in a text."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from parity.engine_steps import make_engine

from nextn.bench.prompts import heldout_prompts
from nextn.config import EMBEDDED, model_folder
from nextn.draft import DRAFT_WINDOW
from nextn.engine.engine import Engine
from nextn.request import Request, SamplingParams
from nextn.tokenizer.tokenizer import Tokenizer

PAUSE = 300  # steps


class Pauses:
    """Automatic depth that drafts, but for some steps. drafting: of the next one."""

    keeping, cutoff, state, num_steps = True, None, None, 3

    def __init__(self, first: int, last: int) -> None:
        self.first, self.last, self.steps = first, last, 0

    @property
    def drafting(self) -> bool:
        return not self.first <= self.steps < self.last

    def note(self, draft: object, accepted: int) -> None:
        pass

    def stepped(self, work: object, seconds: float | None, own: bool, drafting: bool) -> None:
        self.steps += 1


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    tokenizer = Tokenizer.from_folder(model_folder(EMBEDDED))
    return [tokenizer.encode(text)[:64] for text in heldout_prompts(4)]


def engine(auto: Pauses | None, **options: Any) -> Engine:
    """Without `auto`: one that never drafts."""
    settings = {"page_size": 16, "kv_cache_tokens": 8192, "chunked_prefill_size": 512, "dtype": "auto"}
    made = make_engine(model_folder(EMBEDDED), 0 if auto is None else 3, **{**settings, **options})
    made._scheduler.depth.auto = auto  # type: ignore[assignment]
    return made


class Written(NamedTuple):
    tokens: dict[str, list[int]]  # by request
    steps: dict[str, list[int]]  # and the step that each came with
    cached: dict[str, int]


def write(made: Engine, prompts: list[list[int]], tokens: int) -> Written:
    written = Written({}, {}, {})
    params = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
    for i, prompt in enumerate(prompts):
        made.add(Request(str(i), list(prompt), params))
    while made.has_work():
        for out in made.step():
            written.tokens.setdefault(out.rid, []).extend(out.tokens)
            written.steps.setdefault(out.rid, []).extend([made.stats().steps] * len(out.tokens))
            written.cached[out.rid] = out.cached_tokens
    return written


def test_who_drafts_again_has_nearly_the_acceptance_of_who_never_stopped(prompts: list[list[int]]) -> None:
    paused = write(engine(Pauses(30, 30 + PAUSE)), prompts, 600)
    always = write(engine(Pauses(0, 0)), prompts, 600)
    assert paused.tokens == always.tokens
    after = 400  # so many tokens a request has at the end of the pause, or a few more
    assert all(30 + PAUSE < at[after] < 30 + PAUSE + 30 for at in paused.steps.values())

    def steps(written: Written) -> int:
        return sum(at[-1] - at[after] for at in written.steps.values())

    assert steps(always) < 0.6 * len(prompts) * (600 - after)  # or there is nothing to lose
    assert steps(paused) < 1.05 * steps(always)


def test_a_window_smaller_than_what_was_missed_is_all_that_it_sees(prompts: list[list[int]]) -> None:
    made = engine(Pauses(5, 5 + PAUSE))
    params = SamplingParams(max_tokens=500, temperature=0.0, ignore_eos=True)
    made.add(Request("0", list(prompts[0]), params))
    for _ in range(PAUSE + 20):
        made.step()
    [req] = made._scheduler.running
    assert req.draft_from % 16 == 0
    assert DRAFT_WINDOW - 16 <= req.committed - req.draft_from <= DRAFT_WINDOW + 80
    assert req.deferred == 0


@pytest.mark.parametrize("tail", [0, 3, 40])
def test_a_prefix_that_was_computed_while_nobody_drafted_is_a_hit(
    prompts: list[list[int]], tail: int
) -> None:
    """The draft layer has no entries for it: who finds it sees what comes after."""
    auto = Pauses(0, 10**9)
    made = engine(auto)
    first = write(made, prompts[:1], 80)
    assert made.stats().spec.proposed == []
    auto.last = 0
    longer = [prompts[0] + first.tokens["0"][: 60 + tail]]
    again = write(made, longer, 60)
    assert again.cached["0"] >= len(prompts[0])
    assert again.tokens == write(engine(None), longer, 60).tokens
    spec = made.stats().spec
    assert spec.proposed[0] > 0
    assert spec.accepted[0] > 0.5 * spec.proposed[0]


def test_and_one_that_was_drafted_upon_is_as_good_as_ever(prompts: list[list[int]]) -> None:
    made = engine(Pauses(0, 0))
    first = write(made, prompts[:1], 80)
    once = made.stats().spec.accepted[0]
    again = write(made, [prompts[0]], 80)
    assert again.tokens == first.tokens
    assert again.cached["0"] >= len(prompts[0]) - 16
    assert made.stats().spec.accepted[0] == 2 * once
