"""Which shapes get a graph, and which steps run in another's."""

from collections import Counter

import pytest
import torch

from nextn.sampling.row_draws import Choosing
from nextn.speculative.device.graphs import OFTEN, StepGraphs, smallest_covering
from nextn.speculative.device.shape import Drafting, StepShape

THREE = Drafting(3, True)
WANTED = StepShape(32, 100, THREE, Choosing.GREEDY, 512)


def shape(**changes):
    return WANTED._replace(**changes)


@pytest.mark.parametrize(
    "other",
    [
        WANTED, shape(requests=64), shape(rows=200), shape(longest=2048), shape(drafting=Drafting(5, True)),
        shape(drafting=Drafting(3, True, True)),
    ],
)  # fmt: skip
def test_what_covers(other):
    assert other.covers(WANTED)


@pytest.mark.parametrize(
    "other",
    [
        shape(requests=24), shape(requests=65), shape(rows=96), shape(rows=201), shape(longest=256),
        shape(longest=8192), shape(drafting=Drafting(2, True)), shape(drafting=Drafting(6, True)),
        shape(choosing=Choosing.SAMPLED), shape(drafting=Drafting(3, False)),
    ],
)  # fmt: skip
def test_what_does_not(other):
    assert not other.covers(WANTED)


def test_a_cutoff_needs_one():
    cut = shape(drafting=Drafting(3, True, True))
    assert not WANTED.covers(cut)


def test_few_rows_cost_what_a_tile_does():
    assert shape(requests=1, rows=16).covers(shape(requests=1, rows=2))
    assert not shape(requests=1, rows=17).covers(shape(requests=1, rows=2))


def test_the_smallest_covers():
    others = [shape(rows=192), shape(rows=128, longest=2048), shape(rows=128), shape(rows=64)]
    assert smallest_covering(WANTED, others) == shape(rows=128)
    assert smallest_covering(WANTED, others[3:]) is None


@pytest.fixture
def captured(monkeypatch):
    """How often each shape was captured."""
    made = Counter()
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(StepGraphs, "_capture", lambda self, shape: made.update([shape]) or object())
    return made


def test_a_shape_that_comes_often_gets_a_graph(captured):
    passes, full = StepGraphs(None), shape(rows=128)
    passes.capture([full], lambda: None)
    assert [passes.prepare(WANTED) for _ in range(OFTEN)] == [full] * OFTEN
    assert captured == Counter([full])
    assert passes.prepare(WANTED) == WANTED
    assert passes.prepare(WANTED) == WANTED
    assert captured == Counter([full, WANTED])


def test_a_shape_that_nothing_covers_gets_one_at_once(captured):
    passes = StepGraphs(None)
    assert passes.prepare(WANTED) == WANTED
    assert captured == Counter([WANTED])


def test_a_shape_that_cannot_be_captured_runs_kernel_by_kernel(monkeypatch, caplog):
    def fails(self, shape):
        raise RuntimeError("not here")

    class Step:
        ran = 0

        def run(self, shape):
            self.ran += 1

    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(StepGraphs, "_capture", fails)
    passes = StepGraphs(step := Step())
    passes.run(passes.prepare(WANTED))
    assert step.ran == 1
    assert "cannot be captured" in caplog.text
