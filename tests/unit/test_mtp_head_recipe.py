"""The recipe that trains a NextN layer: what it writes is what it trained, and it goes on where it
stopped."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from parity.oracle import random_checkpoint
from support.checkpoints import write_checkpoint

from nextn.config import EngineConfig
from nextn.engine.model import make_model
from nextn.kvcache.pool import KVPool
from nextn.layers.batch import Span

RECIPE = Path(__file__).parents[2] / "recipes" / "mtp-head"
MODEL = "nextn-tiny"


@pytest.fixture(autouse=True)
def _recipe_on_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(RECIPE))
    yield
    for name in [n for n, m in sys.modules.items() if str(RECIPE) in str(getattr(m, "__file__", ""))]:
        del sys.modules[name]


@pytest.fixture
def base():
    from base import Base

    return Base(MODEL, "cpu")


@pytest.fixture
def texts():
    from texts import Text

    gen = torch.Generator().manual_seed(3)

    def text(i: int) -> Text:
        ids = torch.randint(2, 4096, (24 + i,), generator=gen).tolist()
        return Text([0, *ids[:8]], ids[8:], 0.7 * (i % 2))

    return [text(i) for i in range(8)]


@pytest.fixture(params=["mla", "gqa"])
def any_base(request, base, tmp_path):
    """The embedded model; and a random one with grouped queries, norms of heads and a partial rotation."""
    if request.param == "mla":
        return base
    from base import Base

    config, tensors = random_checkpoint({"num_nextn_predict_layers": 0}, 5, "Glm4MoeForCausalLM")
    return Base(str(write_checkpoint(tmp_path / "glm", config, tensors)), "cpu")


def test_the_folder_holds_the_module_that_was_trained(any_base, tmp_path):
    """The engine's first and second step from the folder give what the unrolled module gives."""
    from folder import write_folder
    from module import NextN

    base, vocab = any_base, any_base.config.vocab_size
    torch.manual_seed(1)
    module = NextN(base.config)
    module.begin_at(base.layer, base.norm)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_((p + 0.02 * torch.randn_like(p)).bfloat16())
    write_folder(base, module, range(vocab), tmp_path / "head")
    config = EngineConfig(
        model_path=base.model_path, kernel_backend="reference", device="cpu", speculative_num_steps=2,
        speculative_draft_model_path=str(tmp_path / "head"),
    )  # fmt: skip
    model, _ = make_model(config, torch.device("cpu"), 1)
    ids = torch.randint(2, vocab, (40,), generator=torch.Generator().manual_seed(4)).tolist()
    layers = base.config.num_hidden_layers
    pool = KVPool(layers + 1, 8, 16, model.cache_layout, model.dtype, torch.device("cpu"))
    pages = [1, 2, 3]
    hidden = model.forward(model.batch([Span(ids, 0, pages)], 16), pool)[:40].clone()
    outs = module(hidden[None], base.embedding[torch.tensor([ids])], 2)
    first = model.draft(model.batch([Span([*ids[1:], 0], 0, pages)], 16), hidden, pool)[:39].clone()
    assert torch.allclose(first, outs[0][0, :39], atol=1e-3, rtol=1e-3)
    at = 20  # a chain from here: its first step's entry lies where the true one does
    padded = torch.zeros(model.row_align, hidden.shape[1])
    padded[0] = first[at]
    second = model.draft(model.batch([Span([ids[at + 2]], at + 1, pages)], 16), padded, pool)[0]
    assert torch.allclose(second, outs[1][0, at + 1], atol=1e-3, rtol=1e-3)


def test_states_are_the_models_own(base, texts, tmp_path):
    found = base.states(texts, tmp_path / "states")
    assert found.shape == (sum(len(t.ids) for t in texts), base.config.hidden_size)
    model, _ = make_model(
        EngineConfig(model_path=MODEL, device="cpu", speculative_num_steps=0), torch.device("cpu"), 1
    )
    pool = KVPool(base.config.num_hidden_layers, 8, 16, model.cache_layout, model.dtype, torch.device("cpu"))
    at = len(texts[0].ids)
    want = model.forward(model.batch([Span(texts[1].ids, 0, [1, 2, 3])], 16), pool)[: len(texts[1].ids)]
    assert torch.equal(found[at : at + len(want)], want.bfloat16())
    assert torch.equal(base.states(texts, tmp_path / "states"), found)  # kept, not made again


def test_training_goes_on_where_it_stopped(base, texts, tmp_path, monkeypatch):
    import train
    from train import Budget

    monkeypatch.setattr(train, "HELD_OUT", 2)
    monkeypatch.setattr(train, "LOG_SECONDS", 0)
    states = base.states(texts, tmp_path / "states")
    module, tokens = train.train(base, texts, states, tmp_path, Budget(1e-3, 64, 0))
    assert len(tokens) == 64
    assert {i for text in texts for i in text.answer} >= set(tokens)
    again, _ = train.train(base, texts, states, tmp_path, Budget(1e-3, 64, 0))  # its time is over
    for a, b in zip(module.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)
    rows = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1]
    assert len(rows[0]["loss"]) == 1  # the first depth alone
    monkeypatch.setattr(train, "UNROLL_FROM", 0.0)
    (tmp_path / "training.pt").unlink()
    train.train(base, texts, states, tmp_path, Budget(1e-3, 64, 0))
    rows = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert len(rows[-1]["loss"]) == 3
    assert all(1.0 <= n <= 4.0 for n in rows[0]["accept_lengths"])


def test_training_lowers_the_loss(base, texts, tmp_path):
    from module import NextN
    from train import DEPTH_WEIGHTS, Corpus, losses

    states = base.states(texts, tmp_path / "states")
    torch.manual_seed(0)
    module = NextN(base.config)
    module.begin_at(base.layer, base.norm)
    batch = Corpus(texts, states, torch.device("cpu")).batch(range(len(texts)))
    optimizer = torch.optim.AdamW([p for p in module.parameters() if p.requires_grad], lr=2e-3)
    seen = []
    for _ in range(6):
        loss = losses(module, base, base.head, batch)
        seen.append([float(each.detach()) for each in loss])
        (loss * torch.tensor(DEPTH_WEIGHTS)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert all(last < first for first, last in zip(seen[0], seen[-1], strict=True))


def test_a_line_that_was_cut_is_left_out(tmp_path):
    from texts import read_texts

    path = tmp_path / "texts.jsonl"
    path.write_text('{"prompt": [1], "answer": [2, 3], "temperature": 0.0}\n{"prompt": [1], "ans')
    assert [text.ids for text in read_texts(path)] == [[1, 2, 3]]


def test_too_few_texts_are_refused(base, texts, tmp_path):
    from train import Budget, train

    with pytest.raises(ValueError, match="8 texts are too few"):
        train(base, texts, base.states(texts, tmp_path / "states"), tmp_path, Budget(1.0, 64, 0))


def test_a_chat_model_asks_itself(monkeypatch):
    """Its template is cut where the user's message stands."""
    from texts import frame

    from nextn.tokenizer.tokenizer import Tokenizer

    class Model:
        tokenizer = Tokenizer.from_folder("nextn/data/nextn-tiny")

    before, after = frame(Model())
    assert after is None
    assert before == Model.tokenizer.encode("")
