"""Several NextN layers, one for each depth: what they hold and draft has the same bits however the committed
tokens came to them: at once, token by token, late, or in part out of the prefix cache.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from parity.engine_steps import make_engine, run
from parity.oracle import more_layers, random_checkpoint
from support.draft_spans import draft_span, next_draft
from support.native_kernels import built_levels
from support.native_model import native_model, pool_for, reference_model
from torch import Tensor

from nextn.config import EMBEDDED, model_folder
from nextn.draft import Draft, Shape
from nextn.layers.batch import Span
from nextn.request import Request, SamplingParams
from nextn.speculative.draft_state import DraftState
from nextn.speculative.layered import LayeredDrafter

LAYERS, DEPTH, PAGE = 3, 4, 4
CONFIG, TENSORS = random_checkpoint({"num_nextn_predict_layers": LAYERS}, seed=4)
TOKENS = random.Random(4).choices(range(CONFIG["vocab_size"]), k=30)
PAGES = [7, 2, 9, 4, 1, 8, 3, 6, 5, 10, 11]


class Engine:
    """The steps of one request whose tokens are known beforehand."""

    def __init__(self, model: Any, shape: Shape) -> None:
        self.model = model
        self.pool = pool_for(model, 12, PAGE, seed=0)
        self.drafter = LayeredDrafter(model, self.pool, shape)
        self.draft, self.state = Draft(), DraftState()

    @torch.inference_mode()
    def step(self, start: int, count: int, extend: bool = True) -> None:
        now = TOKENS[start : start + count]
        hidden = self.model.forward(self.model.batch([Span(now, start, PAGES)], PAGE), self.pool)
        following = TOKENS[start + 1 : start + count + 1]
        span = draft_span(
            start, range(count), following, PAGES, DEPTH if extend else 0, history=TOKENS[: start + count],
            state=self.state, extend=extend,
        )  # fmt: skip
        self.draft = next_draft(self.drafter, span, hidden)

    def entries(self) -> list[Tensor]:
        """Of every layer, those of the positions that it has true tokens for."""
        first = CONFIG["num_hidden_layers"]
        true = len(TOKENS) - 1
        slots = torch.tensor([PAGES[i // PAGE] * PAGE + i % PAGE for i in range(true)])
        return [self.pool.layer(first + k)[slots[: true - k]] for k in range(LAYERS)]


@pytest.fixture(scope="module", params=["plain torch", "native"])
def model(request: pytest.FixtureRequest) -> Any:
    if request.param == "plain torch":
        return reference_model(CONFIG, TENSORS)
    built_levels()  # skips where there are none
    return native_model(CONFIG, TENSORS)


@pytest.mark.parametrize("shape", [Shape(), Shape(3, 12)], ids=["chain", "tree"])
def test_however_they_came(model: Any, shape: Shape) -> None:
    whole = Engine(model, shape)
    whole.step(0, 29)
    ways = {
        "one by one": [(i, 1, True) for i in range(29)],
        "unequal": [(0, 1, True), (1, 2, True), (3, 13, True), (16, 1, True), (17, 12, True)],
        "late": [(0, 2, True), (2, 9, False), (11, 1, False), (12, 16, True), (28, 1, True)],
        "late from the beginning": [(0, 1, False), (1, 27, False), (28, 1, True)],
    }
    for name, steps in ways.items():
        engine = Engine(model, shape)
        for step in steps:
            engine.step(*step)
        assert engine.draft == whole.draft, name
        assert all(map(torch.equal, engine.entries(), whole.entries())), name


@pytest.mark.parametrize(("cached", "chunk"), [(4, 1), (24, 2), (24, 30)])
def test_after_a_cache_hit(model: Any, cached: int, chunk: int) -> None:
    """On pages of which only what is true for every layer is left. The last layer's entry at the last of them
    was made with the token two after the page."""
    whole = Engine(model, Shape(3, 12))
    whole.step(0, 29)
    engine = Engine(model, Shape(3, 12))
    engine.step(0, cached + 2)
    slots = torch.tensor([p * PAGE + i for p in PAGES[cached // PAGE :] for i in range(PAGE)])
    engine.pool.data[:, slots] = 1.0  # nothing of what came later
    engine.drafter.drop(engine.state)
    engine.state = DraftState()
    for start in range(cached, 29, chunk):
        engine.step(start, min(chunk, 29 - start))
    assert engine.draft == whole.draft
    assert all(map(torch.equal, engine.entries(), whole.entries()))


COMMON = {"dtype": "auto", "kernel_backend": "cpu", "kv_cache_tokens": 96}
SOME = random.Random(1)
WORK = {
    str(i): (
        [*TOKENS[:11], *SOME.choices(range(2, 4000), k=i)],
        SamplingParams(max_tokens=24, temperature=float(i % 2), seed=i, ignore_eos=True),
    )
    for i in range(6)
}


@pytest.fixture(scope="module")
def layered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built_levels()  # skips where there are none
    return more_layers(model_folder(EMBEDDED), tmp_path_factory.mktemp("layered") / "tiny", LAYERS)


@pytest.fixture(scope="module")
def plain(layered: Path) -> dict[str, list[int]]:
    traces = run(make_engine(layered, 0, **COMMON), WORK)
    return {rid: trace.tokens for rid, trace in traces.items()}


@pytest.mark.parametrize(
    "options", [{}, {"speculative_eagle_topk": 2}, {"speculative_algorithm": "NEXTN+NGRAM"}], ids=str
)
def test_texts_are_those_without_drafts(
    layered: Path, plain: dict[str, list[int]], options: dict[str, Any]
) -> None:
    """On the native kernels, in a pool too small for all, from which every fourth step sends one away."""
    engine = make_engine(layered, LAYERS, **COMMON, **options)
    drafted = {rid: list(prompt) for rid, (prompt, _) in WORK.items()}
    for rid, (prompt, params) in WORK.items():
        engine.add(Request(rid, list(prompt), params))
    while engine.has_work():
        for out in engine.step():
            drafted[out.rid] += out.tokens
        running = engine._scheduler.running
        if len(running) > 1 and engine.stats().steps % 4 == 0:
            engine._scheduler._retract(running[-1])
    assert drafted == plain
    assert engine.startup["draft_layers"] == LAYERS
    assert engine.stats().retracted > 0
    assert len(engine.stats().spec.accepted) == LAYERS
    assert engine.stats().spec.accepted[-1] > 0
