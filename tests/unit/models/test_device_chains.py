"""Chains drafted without waiting are those of a plain loop over depths, whoever chooses the guesses."""

from itertools import accumulate

import pytest
import torch

from nextn.gate import Gate, bins
from nextn.layers.batch import PackedBatch, Span
from nextn.models.device_chains import draft_chains
from nextn.ops.base import Drawn
from nextn.ops.best import best_token

VOCAB, WIDTH = 31, 6


class Toy:
    """States and logits that depend on a row's token, position and state, on nothing else."""

    row_align = 1

    def __init__(self):
        self.weight = torch.randn(WIDTH, VOCAB, generator=torch.Generator().manual_seed(0))
        self.passes = []

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


class Pool:
    page_size = 4


def greedy(count):
    return Drawn(0, 0, 0, 0.0, 1.0, 0.0, -1, count)


SPANS = [Span([3, 4], 5, [7, 2, 9]), Span([8], 0, [4, 5]), Span([1, 2, 3], 2, [11, 12])]
AFTER, DEPTHS = [0, 2, 1], [3, 1, 2]


def by_hand(model, hidden, chain):
    """One chain, alone, guess by guess."""
    span = SPANS[AFTER[chain]]
    last = list(accumulate(len(s.tokens) for s in SPANS))[AFTER[chain]]
    rows = hidden[last - len(span.tokens) : last]
    state = model.draft(model.batch([span], 4), rows, Pool())[-1:]
    guesses = []
    for depth in range(DEPTHS[chain]):
        guesses.append(int(model.draft_logits(state).argmax()))
        at = span.start + len(span.tokens) + depth
        if depth + 1 < DEPTHS[chain]:
            state = model.draft(model.batch([Span([guesses[-1]], at, span.pages)], 4), state, Pool())
    return guesses


@pytest.mark.parametrize("asked", [0, 1, 3])
def test_chains(asked):
    model, hidden = Toy(), torch.randn(9, WIDTH, generator=torch.Generator().manual_seed(1))
    rows = [4, 0, 7, 2, 8, 1]  # of hidden, those of the spans
    told = []

    def guess(logits, paths):
        told.extend((i, tuple(path)) for i, path in paths)
        assert len(logits) == len(paths)
        return logits.argmax(-1).tolist()

    made = draft_chains(
        model, model.batch(SPANS, 4), hidden, rows, Pool(), AFTER, [greedy(n) for n in DEPTHS], guess, asked,
        None, [False] * 3, best_token,
    )  # fmt: skip
    passes = list(model.passes)
    want = [by_hand(model, hidden[rows], chain) for chain in range(3)]
    assert [d.tokens for d in made] == want
    assert [n for n, _ in passes] == [6, 2, 1]  # all, then the chains that go on
    host = range(3 - asked, 3)
    assert sorted(told) == sorted((i, tuple(want[i][:d])) for i in host for d in range(DEPTHS[i]))


def test_nothing_to_guess_still_runs_over_the_true_positions():
    model = Toy()
    made = draft_chains(
        model, model.batch(SPANS, 4), torch.zeros(6, WIDTH), range(6), Pool(), [], [], lambda *_: [], 0,
        None, [], best_token,
    )  # fmt: skip
    assert made == []
    assert [n for n, _ in model.passes] == [6]


HALVES = Gate((0.5,) * 9, keep=0.0, usual=1.0, each=0.0, passing=0.0)


@pytest.mark.parametrize(
    ("gate", "kept"),
    [
        (HALVES, [3, 1, 2]),
        (HALVES._replace(keep=0.5), [1, 1, 1]),
        (HALVES._replace(keep=0.6), [0, 0, 0]),
        (HALVES._replace(each=0.3), [2, 1, 2]),
        (HALVES._replace(passing=0.9), [2, 1, 2]),  # a pass for two chains, not for one
    ],
    ids=["all", "sure", "surer", "each", "passing"],
)
@pytest.mark.parametrize("others", [[], [0], [2], [0, 2]], ids=str)
def test_a_gate_keeps_what_its_rule_would_have_made(gate, kept, others):
    """others: chains that are not gated, which are whole; for them passes go on."""
    model, hidden = Toy(), torch.randn(9, WIDTH, generator=torch.Generator().manual_seed(1))
    rows, leads = [4, 0, 7, 2, 8, 1], []

    def noting(logits):
        found = best_token(logits)
        leads.append(found[1].tolist())
        return found

    def chains(gated, gate):
        return draft_chains(
            model, model.batch(SPANS, 4), hidden, rows, Pool(), AFTER, [greedy(n) for n in DEPTHS],
            lambda *_: [], 0, gate, gated, noting,
        )  # fmt: skip

    whole = [d.tokens for d in chains([False] * 3, None)]
    drafts = chains([i not in others for i in range(3)], gate)
    fell = [[leads[0][0], leads[1][0], leads[2][0]], [leads[0][1]], [leads[0][2], leads[1][1]]]
    if gate.passing and others == [2]:
        kept = [2, 1, 2]
    elif gate.passing and others == [0]:
        kept = [3, 1, 2]
    for i, draft in enumerate(drafts):
        many = DEPTHS[i] if i in others else kept[i]
        assert draft.tokens == whole[i][:many]
        assert draft.bins == (b"" if i in others else bins(fell[i]))
