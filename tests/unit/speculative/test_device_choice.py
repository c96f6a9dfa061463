"""Chains chosen on a device that is not waited for are those of a plain loop over depths."""

from dataclasses import replace

import pytest
import torch
from support.draft_spans import all_drafts, draft_span

from nextn.cutoff import Cutoff, bins
from nextn.draft import Shape
from nextn.layers.batch import PackedBatch, Span
from nextn.ops.best import best_token
from nextn.request import SamplingParams
from nextn.speculative.mtp import MTPDrafter

VOCAB, WIDTH = 31, 6


class Toy:
    """States and logits that depend on a row's token, position and state, on nothing else."""

    row_align = 1

    def __init__(self):
        self.weight = torch.randn(WIDTH, VOCAB, generator=torch.Generator().manual_seed(0))
        self.passes, self.confidence = [], []

    def batch(self, spans, page_size):
        return PackedBatch(spans, page_size)

    def draft(self, batch, hidden, pool, layer=0):
        on = batch.on(batch.packed)
        tokens = on.tokens if batch.tokens is None else batch.tokens
        self.passes.append((batch.rows, on.slots.tolist()))
        angle = tokens[:, None] * 0.7 + on.positions[:, None] * 0.3 + torch.arange(WIDTH)
        return (hidden + angle).sin()

    def draft_logits(self, hidden):
        return hidden @ self.weight

    def best_draft(self, hidden):
        found = best_token(self.draft_logits(hidden))
        self.confidence.append(found[1].tolist())
        return found


class Pool:
    page_size = 4


SPANS = [Span([3, 4], 5, [7, 2, 9]), Span([8], 0, [4, 5]), Span([1, 2, 3], 2, [11, 12])]
NUM_STEPS = [3, 2, 1]
ROWS = [[4, 0], [7], [2, 8, 1]]  # of hidden
HIDDEN = torch.randn(9, WIDTH, generator=torch.Generator().manual_seed(1))
SEEDED = SamplingParams(seed=5)


def step(**changes):
    return [
        draft_span(s.start, rows, s.tokens, s.pages, num_steps, **changes)
        for s, rows, num_steps in zip(SPANS, ROWS, NUM_STEPS, strict=True)
    ]


def drafted(spans, plain=False):
    model = Toy()
    drafter = MTPDrafter(model, Pool(), Shape(), plain=plain)
    assert (drafter.on_device is None) == plain
    return model, all_drafts(drafter, spans, HIDDEN)


def by_hand(n):
    """One chain, alone, guess by guess."""
    model, span = Toy(), SPANS[n]
    state = model.draft(model.batch([span], 4), HIDDEN[ROWS[n]], Pool())[-1:]
    guesses = []
    for depth in range(NUM_STEPS[n]):
        guesses.append(int(model.draft_logits(state).argmax()))
        at = span.start + len(span.tokens) + depth
        state = model.draft(model.batch([Span([guesses[-1]], at, span.pages)], 4), state, Pool())
    return guesses


@pytest.mark.parametrize("plain", [False, True])
def test_chains(plain):
    model, made = drafted(step(), plain)
    assert [d.tokens for d in made.drafts] == [by_hand(n) for n in range(3)]
    assert [n for n, _ in model.passes] == [6, 2, 1]  # all, then the chains that go on
    assert (made.extended, list(made.passes)) == (6, [2, 1])
    assert bool(model.confidence) != plain


def test_guesses_that_take_noise_are_chosen_by_the_host():
    spans = [
        replace(s, request=replace(s.request, params=SEEDED)) if i == 1 else s for i, s in enumerate(step())
    ]
    model, made = drafted(spans)
    assert not model.confidence
    assert made.drafts == drafted(spans, plain=True)[1].drafts
    assert [made.drafts[n].tokens for n in (0, 2)] == [by_hand(0), by_hand(2)]


def test_nothing_to_guess_still_runs_over_the_true_positions():
    model, made = drafted([replace(s, num_steps=0) for s in step()])
    assert [len(d) for d in made.drafts] == [0, 0, 0]
    assert [n for n, _ in model.passes] == [6]


HALVES = Cutoff((0.5,) * 9, row_cost=0.0, mean_rate=1.0, guess_cost=0.0, pass_cost=0.0)


@pytest.mark.parametrize(
    ("cutoff", "kept"),
    [
        (HALVES, [3, 2, 1]),
        (HALVES._replace(row_cost=0.5), [1, 1, 1]),
        (HALVES._replace(row_cost=0.6), [0, 0, 0]),
        (HALVES._replace(guess_cost=0.3), [2, 2, 1]),
        (HALVES._replace(pass_cost=0.9), [2, 2, 1]),  # a pass for two chains, not for one
    ],
    ids=["all", "sure", "surer", "each", "passing"],
)
@pytest.mark.parametrize("others", [[], [0], [1], [0, 1]], ids=str)
def test_a_cutoff_keeps_what_its_rule_would_have_made(cutoff, kept, others):
    """others: chains without one, which are whole; for them passes go on."""
    spans = [replace(s, cutoff=None if n in others else cutoff) for n, s in enumerate(step())]
    model, made = drafted(spans)
    assert [n for n, _ in model.passes] == [6, 2, 1]  # whatever is kept: nobody looks before the end
    if cutoff.pass_cost and others == [1]:
        kept = [2, 2, 1]
    elif cutoff.pass_cost and others == [0]:
        kept = [3, 2, 1]
    order = [n for n in range(3) if n not in others] + others
    for n, draft in enumerate(made.drafts):
        assert draft.tokens == by_hand(n)[: NUM_STEPS[n] if n in others else kept[n]]
        at = [[i for i in order if NUM_STEPS[i] > depth].index(n) for depth in range(NUM_STEPS[n])]
        fell = bins([model.confidence[depth][i] for depth, i in enumerate(at)])
        assert draft.bins == (b"" if n in others else fell)
    plain = drafted(spans, plain=True)[1]
    assert [list(d.tokens) for d in plain.drafts] == [list(d.tokens) for d in made.drafts]
    assert all(d.bins.startswith(p.bins) for d, p in zip(made.drafts, plain.drafts, strict=True))
