"""benchmarks/collective_bytes.py: the model's gathers, DeepSeek-V3's weights, its page's tables."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest
import torch
from support.checkpoints import tiny_config
from support.sharing import ExactReference, shared_model
from torch import Tensor

from nextn.kvcache.pool import KVPool
from nextn.layers.batch import Span
from nextn.ops.base import ROW_ALIGN as ROWS  # so that no row is padding, as on GPUs

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def paper() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        return importlib.import_module("collective_bytes")


class Counting:
    """Rank 0 of two, which hears nothing of the other one."""

    rank, size = 0, 2

    def __init__(self) -> None:
        self.collectives = self.bytes = 0

    def gather(self, whole: Tensor, bounds: Sequence[int]) -> None:
        self.collectives += 1
        self.bytes += whole.nbytes


def test_gathers_are_those_of_the_model(paper: ModuleType) -> None:
    """The model for GPUs: a dense layer and two MoE layers, the head, and one draft."""
    # Each row goes to all experts, because the reference pads the rows of an expert.
    config = tiny_config(num_hidden_layers=3, num_experts_per_tok=8, topk_group=4)
    group = Counting()
    model = shared_model(config, group, ExactReference(), torch.bfloat16)
    cfg = model.config
    sizes = paper.Model(
        cfg.hidden_size, cfg.num_attention_heads * cfg.v_head_dim, cfg.intermediate_size,
        cfg.moe_intermediate_size, cfg.num_experts_per_tok, cfg.n_shared_experts, cfg.vocab_size,
        cfg.num_hidden_layers, cfg.first_k_dense_replace,
    )  # fmt: skip
    assert (sizes.layers, sizes.dense) == (3, 1)
    pool = KVPool(4, 2, ROWS, model.cache_layout, model.dtype, model.device)

    def sent() -> tuple[int, int]:
        found = group.collectives, group.bytes
        group.collectives = group.bytes = 0
        return found

    span = Span(list(range(ROWS)), 0, [1])
    assert sent() == (0, 0)
    hidden = model.forward(model.batch([span], ROWS), pool)
    model.logits(hidden)
    target = sizes.target(ROWS)
    assert sent() == (target.collectives, target.bytes)
    model.draft_logits(model.draft(model.batch([span], ROWS), hidden, pool)[:1])
    draft = sizes.drafts(1, 1, ROWS)
    assert sent() == (draft.collectives, draft.bytes)


def test_weights_are_the_models(paper: ModuleType) -> None:
    """A token uses 37 billion weights (arXiv 2412.19437). Some take two or four bytes."""
    # kv_b and the head are bf16, the router f32
    more = paper.V3.layers * paper.KV_B + paper.paper.HEAD + 3 * paper.MOE_LAYERS * paper.paper.ROUTER
    whole, split = paper.whole_bytes(0), paper.split_bytes(1, 0)
    assert whole + split - more == pytest.approx(37e9, rel=0.02)
    assert paper.reading(16) > paper.reading(8) / 2, "what every rank reads is not divided"
    assert paper.split_bytes(2, 0) < 2 * split


def test_the_last_line_and_the_page(paper: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    """The page's tables are what the script prints."""
    paper.main()
    printed = capsys.readouterr().out.splitlines()
    last = json.loads(printed[-1])
    assert last["assumptions"]["measured"] is False
    assert (len(last["cells"]), len(last["drafts"])) == (24, 8)
    page = (ROOT / "docs" / "calculated.md").read_text(encoding="utf-8")
    section = page.partition("## Tensor parallelism")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    assert len(rows) > 20
    assert [row for row in rows if row not in printed] == []
    assert all(found in section for found in printed[-2].partition(": ")[2].split(", "))
