"""A model with several NextN modules: each is the reference's of its number, with KV entries of its own."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from parity.nextn_reference import NextNReference
from parity.oracle import random_checkpoint
from support.checkpoints import write_checkpoint
from support.native_kernels import built_levels
from support.native_model import native_model, pool_for, reference_model
from torch import Tensor

from nextn.layers.batch import Span

# All experts open, as in test_native_model: rounding sends no row to other ones.
CHANGES = {"num_nextn_predict_layers": 3, "num_experts_per_tok": 8, "topk_group": 4}
CONFIG, EXACT = random_checkpoint(CHANGES, seed=11)
TENSORS = {  # what the native model holds in bf16, in bf16, so that plain torch computes with the same
    name: t if t.dim() == 1 or name.endswith("mlp.gate.weight") else t.bfloat16().float()
    for name, t in EXACT.items()
}
TOKENS = random.Random(11).choices(range(CONFIG["vocab_size"]), k=41)
PAGES = [7, 2, 9, 4, 1, 8, 3, 6, 5, 10, 11]
BOUNDS = {"plain torch": 1e-5, "native": 0.02}  # root mean square of the difference, relative


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> list[Tensor]:
    """Of every module, [40, C]: the state and the token after it in, its output out."""
    folder = write_checkpoint(tmp_path_factory.mktemp("three"), CONFIG, TENSORS)
    found = []
    for k in range(3):
        reference = NextNReference(folder, k)
        with torch.no_grad():
            found.append(reference.module(reference.hidden(TOKENS)[:-1], TOKENS[1:]))
    return found


@torch.inference_mode()
def outputs(model: Any, chunk: int) -> list[Tensor]:
    """The same of our model, over one pool: the modules take turns, chunk by chunk."""
    pool = pool_for(model, 12, 4, seed=0)
    found: list[list[Tensor]] = [[] for _ in range(model.nextn_layers)]
    for start in range(0, len(TOKENS) - 1, chunk):
        now = TOKENS[:-1][start : start + chunk]
        after = TOKENS[1:][start : start + chunk]
        batch = model.batch([Span(now, start, PAGES)], pool.page_size)
        hidden = model.forward(batch, pool).clone()
        following = model.batch([Span(after, start, PAGES)], pool.page_size)
        for k in range(model.nextn_layers):
            found[k].append(model.draft(following, hidden, pool, k)[: len(now)].clone())
    return [torch.cat(parts) for parts in found]


def made(kind: str) -> Any:
    if kind == "plain torch":
        return reference_model(CONFIG, TENSORS)
    built_levels()  # skips where there are none
    return native_model(CONFIG, TENSORS)


def apart(a: Tensor, b: Tensor) -> float:
    return float((a - b).square().mean().sqrt() / b.square().mean().sqrt())


@pytest.mark.parametrize("kind", ["plain torch", "native"])
def test_every_module(wanted: list[Tensor], kind: str) -> None:
    got = outputs(made(kind), 40)
    for k in range(3):
        for other in range(3):
            assert (apart(got[k], wanted[other]) < BOUNDS[kind]) == (k == other), (k, other)


@pytest.mark.parametrize("kind", ["plain torch", "native"])
def test_caches_are_their_own(kind: str) -> None:
    """To the bit the same in one go, in chunks and token by token, while the others write theirs."""
    whole = outputs(made(kind), 40)
    for chunk in (7, 1):
        assert all(torch.equal(a, b) for a, b in zip(outputs(made(kind), chunk), whole, strict=True))


def test_modules_that_are_there() -> None:
    built_levels()
    three = native_model(CONFIG, TENSORS)
    one = native_model({**CONFIG, "num_nextn_predict_layers": 1}, TENSORS)
    assert (three.nextn_layers, one.nextn_layers) == (3, 1)
    more = [t for name, t in TENSORS.items() if name.startswith(("model.layers.4.", "model.layers.5."))]
    assert three.weight_bytes - one.weight_bytes > 2 * sum(t.numel() for t in more if t.dim() == 2)
    for model in (one, reference_model({**CONFIG, "num_nextn_predict_layers": 1}, TENSORS)):
        pool = pool_for(model, 2, 4, seed=0)
        batch = model.batch([Span([1], 0, [1])], pool.page_size)
        hidden = torch.zeros(model.row_align, 32)
        model.draft(batch, hidden, pool)
        with pytest.raises((AssertionError, IndexError)):
            model.draft(batch, hidden, pool, 1)
