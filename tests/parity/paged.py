"""Our model over the paged pool, without an engine: any cut of a sequence into steps, any page table."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from nextn.families.config import ModelConfig
from nextn.kvcache.pool import KVPool
from nextn.layers.batch import Span, build_batch
from nextn.models.loader import load_checkpoint
from nextn.models.names import expected_tensors, nextn_prefixes, product_shapes, shared_tensors
from nextn.models.torch_model import TorchModel
from nextn.ops.registry import make_ops

CPU = torch.device("cpu")
F32 = torch.float32


def load_ours(folder: Path) -> TorchModel:
    """The target alone, f32."""
    cfg = ModelConfig.from_folder(folder)
    expected = expected_tensors(cfg, 0)
    ops = make_ops(product_shapes(cfg), F32, CPU)
    model = TorchModel(cfg, ops, F32, CPU, nextn_layers=0)
    load_checkpoint(
        folder,
        expected,
        model.place,
        quantization=cfg.quantization,
        dtype=F32,
        shared=shared_tensors(cfg, 0),
        skip_prefixes=nextn_prefixes(cfg),
    )
    return model


@torch.inference_mode()
def paged_logits(
    model: TorchModel, tokens: Sequence[int], chunk: int, page_size: int, seed: int, company: bool = False
) -> Tensor:
    """[len(tokens), vocab]: the sequence fed `chunk` tokens a step, its pages shuffled and apart.

    The pool starts out full of garbage: nothing but what these steps wrote may count.
    company: another request's tokens stand before ours in every step.
    """
    cfg = model.config
    need = -(-len(tokens) // page_size)
    pool = KVPool(len(model.layers), 4 * need + 1, page_size, model.cache_layout, F32, CPU)
    pool.data.normal_(0, 50, generator=torch.Generator().manual_seed(seed))
    pages = random.Random(seed).sample(range(1, 4 * need + 1), 2 * need)
    mine, others = pages[:need], pages[need:]
    parts = []
    for start in range(0, len(tokens), chunk):
        spans = [Span(tokens[start : start + chunk], start, mine)]
        before = 0
        if company:
            other = [(t * 7 + 3) % cfg.vocab_size for t in tokens[start : start + chunk]]
            before = len(other)
            spans.insert(0, Span(other, start, others))
        batch = build_batch(spans, page_size, CPU)
        logits = model.logits(model.forward(batch, pool))
        parts.append(logits[before : before + len(spans[-1].tokens)])
    return torch.cat(parts)
