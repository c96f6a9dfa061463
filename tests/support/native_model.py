"""NativeModel and its reference, the plain torch model, with pools that the test makes."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from nextn.families.config import ModelConfig
from nextn.kvcache.pool import KVPool
from nextn.layers.batch import Span
from nextn.models.names import expected_tensors
from nextn.models.native import NativeModel
from nextn.models.torch_model import TorchModel
from nextn.ops.reference import Reference

CPU = torch.device("cpu")


def native_model(
    config: Mapping[str, Any], tensors: Mapping[str, Tensor], threads: int = 1, **options: Any
) -> NativeModel:
    """A NativeModel with its NextN modules."""
    cfg = ModelConfig.from_dict(config)
    model = NativeModel(cfg, cfg.num_nextn_predict_layers, threads, **options)
    for name in expected_tensors(cfg, cfg.num_nextn_predict_layers):
        model.place(name, tensors[name])
    return model


def reference_model(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> TorchModel:
    """The model in f32. The matrices that the native model has in bf16 are rounded to bf16; the router and
    norms are not."""
    cfg = ModelConfig.from_dict(config)
    model = TorchModel(cfg, Reference(), torch.float32, CPU, cfg.num_nextn_predict_layers)
    for name in model.targets():
        tensor = tensors[name].float()
        exact = tensor.dim() == 1 or name.endswith("mlp.gate.weight")
        model.place(name, tensor if exact else tensor.bfloat16().float())
    return model


@torch.inference_mode()
def step(model: Any, spans: Sequence[Span], pool: KVPool) -> tuple[Tensor, Tensor, Tensor]:
    """(hidden, logits, the NextN module's output) of all rows. The token after each row is computed from its
    token."""
    batch = model.batch(spans, pool.page_size)
    rows = sum(len(s.tokens) for s in spans)
    hidden = model.forward(batch, pool).clone()
    vocab = model.config.vocab_size
    after = [Span([(t * 5 + 1) % vocab for t in s.tokens], s.start, s.pages) for s in spans]
    drafted = model.draft(model.batch(after, pool.page_size), hidden, pool).clone()
    return hidden[:rows], model.logits(hidden)[:rows].clone(), drafted[:rows]


def pool_for(model: Any, pages: int, page_size: int, seed: int) -> KVPool:
    """A pool full of values that must not affect results. For the native model they are NaN. For the other
    model they are large numbers, because it multiplies slots that a row does not see by zero."""
    layers = model.config.num_hidden_layers + model.nextn_layers
    pool = KVPool(layers, pages, page_size, model.cache_layout, model.dtype, CPU)
    if isinstance(model, NativeModel):
        pool.data.fill_(torch.nan)
    else:
        pool.data.normal_(0, 50, generator=torch.Generator().manual_seed(seed))
    return pool


def feed(
    model: Any,
    prompts: Sequence[Sequence[int]],
    cuts: Sequence[Sequence[int]],
    page_size: int = 4,
    seed: int = 0,
) -> list[tuple[Tensor, ...]]:
    """For each prompt, the outputs of `step` for its rows. cuts: for each prompt, the number of its tokens in
    each step. A step has several prompts, in a random order."""
    rng = random.Random(seed)
    need = [-(-len(p) // page_size) for p in prompts]
    pages = rng.sample(range(1, 2 * sum(need) + 1), sum(need))
    tables = []
    for n in need:
        tables.append(pages[:n])
        pages = pages[n:]
    pool = pool_for(model, 2 * sum(need) + 1, page_size, seed)
    found: list[list[tuple[Tensor, ...]]] = [[] for _ in prompts]
    done, left = [0] * len(prompts), [list(c) for c in cuts]
    while any(left):
        order = [i for i, c in enumerate(left) if c]
        rng.shuffle(order)
        spans = []
        for i in order:
            n = left[i].pop(0)
            spans.append(Span(prompts[i][done[i] : done[i] + n], done[i], tables[i]))
            done[i] += n
        row = 0
        results = step(model, spans, pool)
        for i, span in zip(order, spans, strict=True):
            upto = row + len(span.tokens)
            found[i].append(tuple(r[row:upto].clone() for r in results))
            row = upto
    assert done == [len(p) for p in prompts]
    return [tuple(map(torch.cat, zip(*parts, strict=True))) for parts in found]


def whole(prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    return [[len(p)] for p in prompts]


def in_chunks(prompts: Sequence[Sequence[int]], longest: int, seed: int) -> list[list[int]]:
    """Cuts at random, in chunks of up to `longest` tokens."""
    rng = random.Random(seed)
    cuts = []
    for p in prompts:
        left, cut = len(p), []
        while left:
            cut.append(min(left, rng.randint(1, longest)))
            left -= cut[-1]
        cuts.append(cut)
    return cuts


in_single_tokens = partial(in_chunks, longest=1, seed=0)
