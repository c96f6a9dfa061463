"""Requests of all kinds, and a step with them: with the kernels that run between its passes, and with plain
tensor code."""

import dataclasses
import math
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from nextn.cutoff import EDGES, Cutoff
from nextn.draft import MAX_DRAFTS
from nextn.layers.batch import Batch
from nextn.ops.base import NO_TOKEN
from nextn.request import SamplingParams
from nextn.sampling.row_draws import Choosing, RowDraws
from nextn.speculative.device.columns import INPUTS, RESULT_WIDTH
from nextn.speculative.device.cutoff import edges
from nextn.speculative.device.numbers import StepMemory
from nextn.speculative.device.plain import PlainNumbers
from nextn.speculative.device.relay import Relay, Start, relay_row
from nextn.speculative.device.shape import Drafting, StepShape
from nextn.speculative.device.triton.numbers import TritonNumbers

PAGE, PAGES, VOCABULARY = 4, 12, 6
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# Some chains reach exactly the limit for keeping a guess. Some are just below the limit for another guess.
CUTOFF = Cutoff(
    (0.25, 0.3, 0.5, 0.7, 0.9, 1.0, 1.0, 1.0, 1.0),
    row_cost=0.25,
    mean_rate=0.8,
    guess_cost=0.25,
    pass_cost=0.3,
)
CHOICES = (NO_TOKEN, NO_TOKEN, *range(VOCABULARY))
SURE = (*EDGES, 0.0, 0.1, 0.2, math.nan, math.nan, 9.0, 9.0, math.inf, math.inf)
PARAMS = SamplingParams(temperature=0.7, seed=2**63 + 5, stream=3, top_p=0.9)

tokens = st.integers(0, VOCABULARY - 1)
rarely = st.sampled_from((False, False, False, True))
request = st.fixed_dictionaries(
    {
        "length": st.integers(1, 2 * PAGE),
        "draft": st.lists(tokens, max_size=4) | st.lists(tokens, min_size=MAX_DRAFTS, max_size=MAX_DRAFTS),
        "ended": rarely,
        "room": st.integers(0, 4) | st.integers(0, 20),
        "end_ids": st.sets(tokens, max_size=2),
        "num_steps": st.integers(-1, 3),
        "most": st.integers(0, MAX_DRAFTS),
        "cut": st.booleans(),
        "draft_from": st.sampled_from((0, 0, PAGE)),
        "nobody": rarely,
    }
)
drafting = st.sampled_from(
    (Drafting(), Drafting(0, True), Drafting(1, True), Drafting(3, True), Drafting(3, True, cut=True))
)


def memory_of(requests: list[dict[str, Any]], row_align: int) -> StepMemory:
    relay = Relay(len(requests), PAGES, DEVICE)
    order = torch.randperm(relay.pages[1:].numel(), generator=torch.Generator().manual_seed(1)) + 1
    relay.pages[1:] = order.view(len(requests), PAGES).to(DEVICE)
    inputs = torch.zeros(len(requests), INPUTS, dtype=torch.int32, device=DEVICE)
    for n, r in enumerate(requests):
        if r["nobody"]:
            continue
        draft_from = min(r["draft_from"], (r["length"] - 1) // PAGE * PAGE)
        values = [1 + n, r["num_steps"], r["most"], r["cut"], draft_from]
        inputs[n] = torch.tensor(values, dtype=torch.int32)
        start = Start(r["length"], n % VOCABULARY, r["draft"], r["ended"])
        row = relay_row(start, r["length"] + r["room"], PARAMS, sorted(r["end_ids"]), VOCABULARY)
        relay.rows[1 + n] = torch.from_numpy(row).to(DEVICE)
    cutoff = torch.tensor(CUTOFF.numbers, device=DEVICE)
    results = torch.full((len(requests), RESULT_WIDTH), 77, dtype=torch.int32, device=DEVICE)
    return StepMemory(relay, inputs, results, cutoff, edges(DEVICE), PAGE, row_align)


def copied(memory: StepMemory) -> StepMemory:
    relay = Relay(len(memory.relay.rows) - 1, PAGES, DEVICE)
    relay.rows.copy_(memory.relay.rows)
    relay.pages.copy_(memory.relay.pages)
    return memory._replace(relay=relay, inputs=memory.inputs.clone(), results=memory.results.clone())


def same_batch(got: Batch, want: Batch) -> None:
    for name in ("rows", "tokens", "positions", "slots"):
        same(getattr(got, name), getattr(want, name), name)
    for field in dataclasses.fields(want.attention):
        if field.name != "computed":
            same(getattr(got.attention, field.name), getattr(want.attention, field.name), field.name)


def same(got: Any, want: Any, name: str) -> None:
    if isinstance(want, torch.Tensor):
        assert torch.equal(got.long(), want.long()), (name, got, want)
    else:
        assert got == want, name


def same_draws(got: RowDraws, want: RowDraws, real: Any) -> None:
    for name, a, b in zip(want._fields, got, want, strict=True):
        assert torch.equal(a[real].double(), b[real].double()), name


def compare(
    requests: list[dict[str, Any]], drafting: Drafting, padding: int, row_align: int, rng: np.random.Generator
) -> Tensor:
    """Runs a step both ways and compares. Target and drafter choose at random; most drafts are accepted.
    Returns the step's results."""
    memory = memory_of(requests, row_align)
    rows = sum(1 + min(len(r["draft"]), r["most"]) for r in requests) + padding
    shape = StepShape(len(requests), rows, drafting, Choosing.GREEDY, 512)
    other = copied(memory)
    plain, kernels = PlainNumbers(memory, shape, torch.int32), TritonNumbers(other, shape)
    batch = plain.begin()
    same_batch(kernels.begin(), batch)
    real = batch.attention.span_of < len(requests)
    same_draws(kernels.draws(), plain.draws(), real)

    def random_of(choices: Any, count: int, dtype: torch.dtype) -> Tensor:
        return torch.tensor(rng.choice(choices, count), dtype=dtype, device=DEVICE)

    chosen = batch.tokens.roll(-1).long()
    wrong = torch.from_numpy(rng.random(rows) < 0.2).to(DEVICE)
    chosen = torch.where(wrong, random_of(CHOICES, rows, torch.int64), chosen)
    want, got = plain.verify(chosen), kernels.verify(chosen)
    assert (got is None) == (want is None) == (not drafting.extends)
    if want is not None:
        same_batch(got.batch, want.batch)
        same(got.source, want.source, "source")
        same(got.last, want.last, "last")
    for step in range(drafting.num_steps):
        same_draws(kernels.guess_draws(step), plain.guess_draws(step), slice(None))
        guess = random_of(CHOICES, len(requests), torch.int64)
        sure = random_of(SURE, len(requests), torch.float32) if drafting.cut else None
        want, got = (numbers.guessed(step, guess, sure) for numbers in (plain, kernels))
        assert (got is None) == (want is None) == (step + 1 == drafting.num_steps)
        if want is not None:
            same_batch(got, want)
    plain.end()
    kernels.end()
    same(other.results, memory.results, "results")
    same(other.relay.rows, memory.relay.rows, "rows")
    same(other.relay.pages, memory.relay.pages, "pages")
    return memory.results


def many(count: int) -> Tensor:
    """A step with `count` requests of all kinds."""
    rng = np.random.default_rng(count)
    requests = [
        {
            "length": int(rng.integers(1, 2 * PAGE)),
            "ended": rng.random() < 0.1,
            "end_ids": {5},
            "draft": rng.integers(0, VOCABULARY, rng.integers(0, 3)).tolist(),
            "room": int(rng.integers(0, 10)),
            "most": 2,
            "num_steps": int(rng.choice((-1, 0, 1, 2, 3, 3, 3, 3))),
            "cut": n % 3 > 0,
            "draft_from": 0,
            "nobody": n % 9 == 0,
        }
        for n in range(count)
    ]
    return compare(requests, Drafting(3, True, cut=True), 5, 1, rng)
