"""The probe of what steps cost, on a model whose calls are counted instead of timed."""

import pytest
import torch

from nextn.engine import probe_costs
from nextn.engine.probe_costs import CostProbe
from nextn.engine.sampler import draw
from nextn.kvcache.pool import KVPool
from nextn.models.fake import FakeModel


class Counting(FakeModel):
    """Time goes by as rows do: a millisecond a row of the target, a tenth of that of the draft layer."""

    def __init__(self):
        super().__init__((1.0,), torch.device("cpu"))
        self.now = 0.0
        self.pages = []

    def batch(self, spans, page_size):
        self.rows = len(spans)
        self.pages.append([span.pages for span in spans])
        return super().batch(spans, page_size)

    def forward(self, batch, pool):
        self.now += self.rows * 1e-3
        return super().forward(batch, pool)

    def draft(self, batch, hidden, pool, layer=0):
        self.now += self.rows * 1e-4
        return super().draft(batch, hidden, pool, layer)


def probe(monkeypatch, pages=400, most=64, seconds=10.0, page_size=4, drafts=True):
    model = Counting()
    monkeypatch.setattr(probe_costs.time, "perf_counter", lambda: model.now)
    pool = KVPool(2, pages + 1, page_size, 1, torch.float32, torch.device("cpu"))
    return model, CostProbe(model, pool, draw).costs(most, drafts, seconds)


def test_the_table_is_what_was_timed(monkeypatch):
    _, costs = probe(monkeypatch)
    for rows in (1, 2, 5, 16, 48, 64, 100):
        assert costs.target(rows) == pytest.approx(rows * 1e-3)
        assert costs.extend(rows) == costs.draft(rows) == pytest.approx(rows * 1e-4)
    assert costs.target.rows == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64]


def test_without_a_draft_layer(monkeypatch):
    _, costs = probe(monkeypatch, drafts=False)
    assert costs.target(16) == pytest.approx(16e-3)
    assert costs.extend(16) == costs.draft(16) < 1e-8


def test_the_time_ends_it_but_not_before_there_is_a_line(monkeypatch):
    _, costs = probe(monkeypatch, seconds=0.0)
    assert costs.target.rows == [1, 8, 64]
    assert costs.target(512) == pytest.approx(0.512)


@pytest.mark.parametrize(("pages", "page_size"), [(3, 4), (1, 16), (20, 1), (40, 1024)])
def test_rows_keep_to_the_pool_and_to_pages_of_their_own(monkeypatch, pages, page_size):
    model, costs = probe(monkeypatch, pages, page_size=page_size)
    assert costs.target(1) == pytest.approx(1e-3)
    for tables in model.pages:
        own = [table[-1] for table in tables]
        assert len(set(own)) == len(own)
        assert not set(own) & {page for table in tables for page in table[:-1]}
        assert all(1 <= page <= pages for table in tables for page in table)
