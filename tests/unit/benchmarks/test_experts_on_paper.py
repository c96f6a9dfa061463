"""benchmarks/experts_on_paper.py: DeepSeek-V3's sizes, what its times have to satisfy, its page's tables."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def paper() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        return importlib.import_module("experts_on_paper")


def test_sizes_are_the_models(paper: ModuleType) -> None:
    """671 billion weights, of which a token uses 37 billion (arXiv 2412.19437)."""
    layers = paper.LAYERS - paper.DENSE
    fp8, bf16 = paper.matrices(paper.Setting(16, 1))
    everything = fp8 + bf16 + paper.HEAD + layers * paper.EXPERTS * paper.EXPERT
    assert everything == pytest.approx(671e9, rel=0.005)
    assert fp8 + bf16 + layers * paper.TOP_K * paper.EXPERT == pytest.approx(37e9, rel=0.02)
    assert [paper.Setting(ep, 1).local for ep in (16, 32, 72, 144)] == [16, 8, 4, 2]
    assert paper.SMALL.local == 18


def test_exchanges_are_about_those_that_deepep_publishes(paper: ModuleType) -> None:
    for ep, published in paper.DEEPEP_TABLE.items():
        assert paper.layer_us(paper.Setting(ep, 128)) == pytest.approx(published, rel=0.14)


def test_where_experts_are_compute_bound(paper: ModuleType) -> None:
    """There, reading takes as long as computing, and with a draft half of the requests suffice."""
    for ep in (16, 32, 72, 144):
        s = paper.Setting(ep, 0)
        s = replace(s, requests=paper.compute_bound(paper.H100) * s.local / paper.TOP_K)
        read = s.moe_layers * s.local * paper.EXPERT / s.gpu.memory
        assert paper.experts(s) == pytest.approx(read)
        assert paper.experts(replace(s, requests=1.1 * s.requests)) == pytest.approx(1.1 * read)
        drafting = replace(s, requests=s.requests / 2, drafts=1)
        assert paper.experts(drafting) == pytest.approx(read * drafting.moe_layers / s.moe_layers)


def test_no_published_result_is_above_the_limit(paper: ModuleType) -> None:
    for _, s, published, time in paper.PUBLISHED:
        assert published < paper.per_gpu(s, time(s))


def settings() -> st.SearchStrategy[dict[str, float]]:
    return st.fixed_dictionaries(
        {
            "ep": st.sampled_from([8, 16, 32, 64, 72, 144, 256]),
            "requests": st.floats(1, 1024),
            "context": st.integers(0, 100_000),
            "drafts": st.integers(0, 4),
            "load": st.floats(1, 8),
        }
    )


@given(sizes=settings(), more=st.floats(1, 4), exact=st.booleans())
def test_times(paper: ModuleType, sizes: dict[str, float], more: float, exact: bool) -> None:
    s = paper.Setting(**sizes, wire=paper.NEXTN if exact else paper.DEEPEP)
    both = paper.computed(s), sum(paper.exchanges(s))
    a_bit = 1 + 1e-9
    assert max(both) <= paper.overlapped(s) * a_bit, "halves read the weights twice"
    assert paper.overlapped(s) <= 2 * paper.step(replace(s, requests=s.requests / 2)) * a_bit
    assert paper.step(s) <= paper.step(replace(s, requests=more * s.requests)) * a_bit
    assert paper.step(s) <= paper.step(replace(s, load=more * s.load)) * a_bit
    assert sum(paper.exchanges(replace(s, wire=paper.DEEPEP))) <= both[1] * a_bit
    assert 0 <= paper.elsewhere(s.ep) < 1 <= paper.copies(s.ep, True) <= paper.TOP_K


def test_the_last_line_and_the_page(paper: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    """The page's tables are what the script prints."""
    paper.main()
    printed = capsys.readouterr().out.splitlines()
    last = json.loads(printed[-1])
    assert last["assumptions"]["measured"] is False
    assert len(last["cells"]) == 12
    assert len(last["published"]) == len(paper.PUBLISHED)
    page = (ROOT / "docs" / "calculated.md").read_text(encoding="utf-8")
    section = page.partition("## Expert parallelism")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    assert len(rows) > 20
    assert [row for row in rows if row not in printed] == []
