"""Models that ranks share, and steps of all kinds by which they are compared."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from support.checkpoints import random_tensors, tiny_config
from torch import Tensor

from nextn.distributed.group import Alone, Group
from nextn.families.config import ModelConfig
from nextn.kvcache.pool import KVPool
from nextn.layers.batch import Span
from nextn.layers.replicas import ExpertParallel
from nextn.models.cuda import CudaModel
from nextn.models.names import expected_tensors, product_shapes
from nextn.models.torch_model import TorchModel
from nextn.ops.base import Ops
from nextn.ops.reference import Reference
from nextn.ops.registry import make_ops
from nextn.ops.rotary import rotate

# Wide enough for columns in units of 64, which a BLAS computes with the same bits.
CONFIG = tiny_config(
    hidden_size=256, intermediate_size=384, moe_intermediate_size=256, num_attention_heads=4,
    num_key_value_heads=4, q_lora_rank=128, kv_lora_rank=64, qk_nope_head_dim=32, qk_rope_head_dim=16,
    v_head_dim=32, vocab_size=512, num_hidden_layers=2,
)  # fmt: skip


class ExactReference(Reference):
    """Multiplies and adds up every output by itself, so that any columns and heads can be computed alone."""

    exact_columns = True

    def _linear(self, x: Tensor, weight: Tensor) -> Tensor:
        return (x[:, None] * weight).contiguous().sum(-1)

    def _linear_out(self, x: Tensor, weight: Tensor, out: Tensor) -> None:
        out.copy_(self._linear(x, weight))

    def _bmm(self, a: Tensor, b: Tensor) -> Tensor:
        return (a[:, :, None] * b.transpose(1, 2)[:, None]).contiguous().sum(-1)

    def absorb(self, q: Tensor, key_up: Tensor, cos: Tensor, sin: Tensor, scale: float) -> Tensor:
        # Without complex numbers: their vector code and scalar code differ in the last bit.
        nope = key_up.shape[1]
        turned = rotate(q[..., nope:], cos, sin)
        return torch.cat((self.heads_matmul(q[..., :nope], key_up), turned), dim=-1) * scale


def shared_model(
    config: Mapping[str, Any],
    group: Group = Alone(),  # noqa: B008
    ops: Ops | str = "reference",
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    draft_tokens: Sequence[int] | None = None,
    experts: ExpertParallel | None = None,
    fp8_rows: bool = False,
    kernels: str = "reference",
) -> Any:
    """A model with random weights, the same for all groups. ops: a name, or the ops themselves; then
    `kernels` chooses the model."""
    cfg, on = ModelConfig.from_dict(config), torch.device(device)
    made = ops
    if isinstance(ops, str):
        made, kernels = make_ops(product_shapes(cfg), dtype, on, ops), ops
    layers = cfg.num_nextn_predict_layers
    model = (CudaModel if kernels == "triton" else TorchModel)(
        cfg, made, dtype, on, layers, draft_tokens=draft_tokens, group=group, experts=experts,
        fp8_rows=fp8_rows,
    )  # fmt: skip
    tensors, rows = random_tensors(expected_tensors(cfg, layers), 1, torch.bfloat16), model.rows()
    for name in model.targets():
        own = rows.get(name)
        model.place(name, tensors[name] if own is None else tensors[name][own.start : own.stop])
    return model


@torch.inference_mode()
def all_steps(model: Any, page_size: int = 4, count: int = 4) -> list[Tensor]:
    """Hidden states, logits, drafts and the cache of `count` steps: prompts, chunks, single tokens, a tree,
    chained drafts. The first step has a prompt and chained drafts."""
    cfg = model.config
    pool = KVPool(
        cfg.num_hidden_layers + model.nextn_layers,
        64,
        page_size,
        model.cache_layout,
        model.dtype,
        model.device,
    )
    vocab = cfg.vocab_size
    first, second, third = list(range(1, 9)), list(range(20, 26)), list(range(40, 50))
    steps = [
        [Span([t % vocab for t in (5, 6, 7, 8, 9)], 0, first)],
        [Span([0, 1, vocab - 1], 5, first), Span([(3 * i) % vocab for i in range(19)], 0, second)],
        [Span([2], 8, first), Span([3] * 4, 19, second, [[0], [0, 1], [0, 2], [0, 2, 3]])],
        [Span([i % vocab for i in range(37)], 0, third), Span([3], 9, first)],
    ]
    found: list[Tensor] = []
    for spans in steps[:count]:
        rows = sum(len(span.tokens) for span in spans)
        hidden = model.forward(model.batch(spans, page_size), pool)
        found += [hidden[:rows].clone(), model.logits(hidden)[:rows].clone()]
        for layer in [*range(model.nextn_layers), 0]:
            after = [Span([(t * 5 + 1) % vocab for t in s.tokens], s.start, s.pages, s.paths) for s in spans]
            hidden = model.draft(model.batch(after, page_size), hidden.clone(), pool, layer)
            found += [hidden[:rows].clone(), model.draft_logits(hidden)[:rows].clone()]
    return [*found, pool.data[:, page_size:]]  # without page 0, which is for padding


def same(found: Sequence[Tensor], want: Sequence[Tensor]) -> None:
    """Asserts equal bits."""
    assert len(found) == len(want)
    for i, (a, b) in enumerate(zip(found, want, strict=True)):
        assert a.dtype == b.dtype
        assert torch.equal(a, b), (i, (a != b).float().mean())


def tensors_hash(found: Sequence[Tensor]) -> str:
    """A hash of the tensors' bits."""
    digest = hashlib.sha256()
    for tensor in found:
        digest.update(tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
