"""Steps in one call on several ranks have the results of one rank, and those of the general way."""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest
from parity.oracle import random_checkpoint
from parity.test_native_ranks import WIDE, of_ranks
from support.native_kernels import built_levels
from support.native_model import native_model

from nextn.cutoff import Cutoff
from nextn.draft import NO_DRAFT, Draft, Shape
from nextn.engine.runner import Runner
from nextn.kvcache.pool import KVPool
from nextn.models.native import NativeModel
from nextn.models.native_weights import Drafting
from nextn.ops.cpu.draw import draw
from nextn.ops.cpu.library import library
from nextn.request import SamplingParams
from nextn.scheduler.plan import Plan, SpanPlan, StepResult
from nextn.speculative.mtp import MTPDrafter
from nextn.speculative.state import RequestState

LEVELS = built_levels()
pytestmark = pytest.mark.skipif(not LEVELS, reason="no native kernels")

VOCAB, PAGE, PAGES = WIDE["vocab_size"], 4, 12
CUTOFF = Cutoff(
    (0.5, 0.6, 0.7, 0.8, 0.9, 0.9, 0.9, 0.9, 0.9), row_cost=0.4, mean_rate=0.8, guess_cost=0.2, pass_cost=0.1
)
REQUESTS = [
    SamplingParams(max_tokens=24, temperature=0),
    SamplingParams(max_tokens=24, seed=3),
    SamplingParams(max_tokens=24, seed=4, top_k=9, temperature=0.8),
    SamplingParams(max_tokens=20, seed=5, top_p=0.8),
]
Texts = list[list[int]]


def prompt(i: int) -> list[int]:
    return random.Random(i).choices(range(VOCAB), k=3 + 5 * i)


def states() -> list[RequestState]:
    return [
        RequestState(str(i), p, prompt(i), 3 + 5 * i, 3 + 5 * i + p.max_tokens, frozenset({7}))
        for i, p in enumerate(REQUESTS)
    ]


def drafts(texts: Texts | None, state: RequestState, rng: random.Random) -> Draft:
    """Of the text's next tokens some, mostly with a wrong one among them."""
    if texts is None:
        return NO_DRAFT
    found = texts[int(state.rid)][len(state.history) :][: rng.randint(0, 3)]
    if found and rng.random() < 0.6:
        found[rng.randrange(len(found))] = 5
    return Draft(found) if found else NO_DRAFT


def run(model: NativeModel, level: str, plain: bool, texts: Texts | None) -> tuple[list[StepResult], Texts]:
    """Whole prompts, then steps with drafts of which some hold, until all requests have ended."""
    layers = model.config.num_hidden_layers + model.nextn_layers
    pool = KVPool(layers, PAGES * len(REQUESTS) + 1, PAGE, model.cache_layout, model.dtype, model.device)
    drafter = MTPDrafter(model, pool, Shape(), partial(draw, library(level)))
    info: Any = None
    chooser = None if model._ranks is None else model
    runner = Runner(info, model, pool, drafter, partial(draw, library(level)), None, chooser)
    if not plain:
        runner.plain = None
    for state in states():
        runner.add(state)
    rng, results = random.Random(9), list[StepResult]()
    going, started = list(runner.states.values()), set[str]()
    while going:
        spans = []
        for s in going:
            first = s.rid not in started
            known = len(s.history) if first else 1
            pages = range(1 + PAGES * int(s.rid), 1 + PAGES * (int(s.rid) + 1)) if first else ()
            draft = NO_DRAFT if first else drafts(texts, s, rng).cut(3, s.room - 1)
            start = len(s.history) - known
            spans.append(
                SpanPlan(
                    s.rid, start, known, draft, True, 0, pages, max(0, min(3, s.room - 2)), cut=s.rid != "0"
                )
            )
            started.add(s.rid)
        results.append(runner.run(Plan(spans, CUTOFF)))
        going = [
            s for s, r in zip(going, results[-1].spans, strict=True)
            if s.room > 0 and s.end_ids.isdisjoint(r.tokens)
        ]  # fmt: skip
    return results, [s.history for s in runner.states.values()]


OPTIONS: dict[str, Mapping[str, Any]] = {
    "all": {},
    "token map": {"drafting": Drafting(tokens=tuple(range(0, 333, 2)))},
}


# Every option at the best level, one at the others.
@pytest.mark.parametrize(
    ("name", "level"),
    [*((name, LEVELS[-1]) for name in OPTIONS), *((next(iter(OPTIONS)), level) for level in LEVELS[:-1])],
)
def test_results_do_not_depend_on_the_ranks(name: str, level: str) -> None:
    config, tensors = random_checkpoint(WIDE, seed=7)
    make = partial(native_model, config, tensors, level=level, **OPTIONS[name])
    [(_, texts)] = of_ranks(make, 1, lambda model: run(model, level, False, None))
    [want] = of_ranks(make, 1, lambda model: run(model, level, False, texts))
    assert want[1] == texts
    assert sum(len(span.tokens) > 1 for result in want[0] for span in result.spans) > 5
    for size in (1, 2, 4):
        for found in of_ranks(make, size, lambda model: run(model, level, True, texts)):
            assert found == want
