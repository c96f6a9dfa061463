"""A model without weights, with computed logits and a chosen acceptance: `--model-path fake[:0.9,0.7,...]`.

It is a test instrument. The next token is a hash of every token before it. The tokens are read back from the
paged cache through the batch's page tables. So a wrong slot, a stale entry or a lost position changes the
text. The drafter hashes its own cache layer in the same way. With an acceptance of 1.0, every draft is right
exactly if the drafter's cache is right. With a lower acceptance, a share of 1 - acceptance is made wrong.

Shapes: T rows, hidden [T, 6] f32: four 16-bit words of the hash, 1 if the draft is made wrong, draft depth.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nextn.config import FAKE
from nextn.families.config import ModelConfig
from nextn.kvcache.layout import LatentLayout
from nextn.kvcache.pool import KVPool
from nextn.layers.batch import Batch, Span, build_batch
from nextn.ops.base import ROW_ALIGN
from nextn.ops.gather import gathered

DEFAULT_ACCEPTANCE = (0.85, 0.75, 0.65)
_VOCAB, _LENGTH = 4096, 4096


def parse_acceptance(model_path: str) -> tuple[float, ...] | None:
    """`fake` or `fake:0.9,0.7` -> acceptance by draft depth (the last one is for all greater depths, too).
    None for the path of another model. Raises ValueError for numbers outside [0, 1]."""
    if model_path == FAKE:
        return DEFAULT_ACCEPTANCE
    if not model_path.startswith(FAKE + ":"):
        return None
    try:
        rates = tuple(float(x) for x in model_path[len(FAKE) + 1 :].split(","))
    except ValueError:
        rates = (-1.0,)
    if not all(0.0 <= r <= 1.0 for r in rates):
        raise ValueError(
            f"--model-path {model_path}: after 'fake:' come rates in [0, 1], such as fake:0.9,0.7"
        )
    return rates


def fake_config() -> ModelConfig:
    return ModelConfig.from_dict(
        {
            "architectures": ["DeepseekV3ForCausalLM"],
            "vocab_size": _VOCAB,
            "hidden_size": 6,
            "num_hidden_layers": 1,
            "num_attention_heads": 8,
            "intermediate_size": 8,
            "moe_intermediate_size": 8,
            "first_k_dense_replace": 1,
            "n_routed_experts": 8,
            "n_shared_experts": 1,
            "num_experts_per_tok": 2,
            "n_group": 1,
            "topk_group": 1,
            "norm_topk_prob": True,
            "routed_scaling_factor": 1.0,
            "scoring_func": "sigmoid",
            "topk_method": "noaux_tc",
            "q_lora_rank": None,
            "kv_lora_rank": 1,
            "qk_nope_head_dim": 2,
            "qk_rope_head_dim": 2,
            "v_head_dim": 2,
            "max_position_embeddings": _LENGTH,
            "rope_theta": 10000.0,
            "rms_norm_eps": 1e-6,
            "bos_token_id": 0,
            "eos_token_id": 1,
            "num_nextn_predict_layers": 1,
            "tie_word_embeddings": False,
        }
    )


class FakeModel:
    weight_bytes = 0
    cache_layout = LatentLayout(rank=1, rope=0)  # the token itself
    nextn_layers = 1
    row_align = ROW_ALIGN

    def __init__(self, acceptance: tuple[float, ...], device: torch.device) -> None:
        self.config, self.device, self.dtype = fake_config(), device, torch.float32
        self.acceptance = acceptance
        gen = torch.Generator().manual_seed(7)
        self._factor = torch.randint(1, 2**40, (_LENGTH + 1,), generator=gen).to(device)
        self._factor[0] = 0  # the drafter's cache never has the token at position 0, so the hash ignores it

    def batch(self, spans: Sequence[Span], page_size: int) -> Batch:
        return build_batch(spans, page_size, self.device)

    def forward(self, batch: Batch, pool: KVPool) -> Tensor:
        cache = pool.layer(0)
        cache.index_copy_(0, batch.slots, batch.tokens[:, None].float())
        return self._pack(self._hash(batch, cache, shift=0), depth=None, batch=batch)

    def draft(self, batch: Batch, hidden: Tensor, pool: KVPool, layer: int = 0) -> Tensor:
        assert layer == 0, layer
        cache = pool.layer(1)
        cache.index_copy_(0, batch.slots, batch.tokens[:, None].float())
        return self._pack(self._hash(batch, cache, shift=1), depth=hidden[:, 5] + 1, batch=batch)

    def logits(self, hidden: Tensor) -> Tensor:
        words = hidden[:, :4].double()
        spoiled = hidden[:, 4].double()
        best = (
            words @ torch.tensor([1.0, 31.0, 977.0, 7919.0], dtype=torch.float64, device=words.device)
            + spoiled
        ).long()
        vocab = torch.arange(_VOCAB, dtype=torch.float64, device=hidden.device)
        logits = (((words[:, :1] + 1.37 * spoiled[:, None]) * 0.001 + 1.0) * (vocab + 1.0)).sin() * 2
        logits.scatter_(1, (best % _VOCAB)[:, None], 8.0)
        return logits.float()

    def draft_logits(self, hidden: Tensor) -> Tensor:
        return self.logits(hidden)

    def _hash(self, batch: Batch, cache: Tensor, shift: int) -> Tensor:
        """[T] int64: hash of the cached tokens that each row may attend to. Entry s is the token at position
        s + shift."""
        parts, queries = [], gathered(batch.attention, self.config.num_attention_heads)
        for g in queries.groups:
            b, q, s = g.size
            tokens = cache.index_select(0, g.slots).view(b, 1, s).long()
            seen = tokens * self._factor[shift : shift + s] * ~g.hidden.view(b, q, s)
            parts.append(seen.sum(-1).flatten())
        return torch.cat(parts)[queries.back]

    def _pack(self, value: Tensor, depth: Tensor | None, batch: Batch) -> Tensor:
        value = value ^ (value >> 29) ^ (value >> 43)
        words = torch.stack([(value >> (16 * i)) & 0xFFFF for i in range(4)], dim=-1).float()
        if depth is None:
            return torch.cat((words, torch.zeros_like(words[:, :2])), dim=-1)
        rates = torch.tensor(self.acceptance, device=value.device)
        rate = rates[(depth.long() - 1).clamp(0, len(self.acceptance) - 1)]
        draw = ((value * 0x9E3779B97F4A7C1 >> 33) & 0xFFFF) / 65536.0
        return torch.cat((words, (draw >= rate).float()[:, None], depth[:, None]), dim=-1)
