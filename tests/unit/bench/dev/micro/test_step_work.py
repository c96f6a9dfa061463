"""What a step must read and compute, by hand for a small model, and against the checkpoint's tensors."""

from __future__ import annotations

import math

import pytest

from nextn.bench.dev.micro.step_work import Step, step_work
from nextn.config import EMBEDDED, model_folder
from nextn.families.config import ModelConfig
from nextn.models.names import expected_tensors

SMALL = ModelConfig.from_dict({
    "architectures": ["DeepseekV3ForCausalLM"], "vocab_size": 10, "hidden_size": 8, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 6, "moe_intermediate_size": 4,
    "first_k_dense_replace": 1, "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2,
    "n_group": 2, "topk_group": 2, "q_lora_rank": 5, "kv_lora_rank": 3, "qk_nope_head_dim": 4,
    "qk_rope_head_dim": 2, "v_head_dim": 7, "num_nextn_predict_layers": 1, "eos_token_id": 1,
})  # fmt: skip
GROUPED = ModelConfig.from_dict({
    "architectures": ["Glm4MoeForCausalLM"], "vocab_size": 10, "hidden_size": 8, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6, "partial_rotary_factor": 0.67,
    "intermediate_size": 6, "moe_intermediate_size": 4, "first_k_dense_replace": 1, "n_routed_experts": 4,
    "n_shared_experts": 1, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "use_qk_norm": True,
    "attention_bias": True, "eos_token_id": 1,
})  # fmt: skip
BIASED = ModelConfig.from_dict({
    "architectures": ["LlamaForCausalLM"], "vocab_size": 10, "hidden_size": 8, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 6, "attention_bias": True,
    "eos_token_id": 1,
})  # fmt: skip
# down (5 + 3 + 2) x 8, query up 12 x 5, key and value up 2 * 3 * (4 + 7), out 8 x 14
ATTENTION = 80 + 60 + 66 + 112
NORMS = 8 + 8 + 5 + 3
DENSE, EXPERT, GATE = 3 * 8 * 6, 3 * 8 * 4, 4 * 8


def test_one_row() -> None:
    work = step_work(SMALL, Step(rows=1, end=9, chosen=1, experts=2), size=2)
    # embedding's row, last norm, head; two layers; the shared and two routed experts; 9 entries of 5 a layer
    elements = 8 + 8 + 80 + 2 * (ATTENTION + NORMS) + DENSE + 3 * EXPERT + 2 * 9 * 5
    assert work.bytes == 2 * elements + 4 * (GATE + 4)
    attention = 2 * 9 * 2 * (5 + 3)  # pairs x heads x (score and value)
    products = 2 * ATTENTION + DENSE + GATE + 3 * EXPERT + 80
    assert work.flops == 2 * products + 2 * attention


def test_one_row_of_grouped_queries() -> None:
    work = step_work(GROUPED, Step(rows=1, end=9, chosen=1, experts=2), size=2)
    together = (4 + 2 * 2) * 6
    attention, vectors = 8 * together + 8 * 4 * 6, together + 2 * 6 + 2 * 8
    elements = 8 + 8 + 80 + 2 * (attention + vectors) + DENSE + 3 * EXPERT + 2 * 9 * 2 * 2 * 6
    assert work.bytes == 2 * elements + 4 * (GATE + 4)
    products = 2 * attention + DENSE + GATE + 3 * EXPERT + 80
    assert work.flops == 2 * products + 2 * (2 * 9 * 4 * (6 + 6))


def test_verification_reads_the_drafter_too() -> None:
    plain = step_work(SMALL, Step(rows=3, end=9, chosen=3, experts=4), size=2)
    drafting = step_work(SMALL, Step(3, 9, 3, experts=4 + 3 + 2, drafts=2, extended=2.0), size=2)
    layer = ATTENTION + NORMS + EXPERT
    # twice: the layer, eh_proj, three norms, head, entries of 9 and 10 positions; 3 embeddings; 5 experts
    elements = 2 * (layer + 128 + 24 + 80) + (9 + 10) * 5 + 3 * 8 + 5 * EXPERT
    assert drafting.bytes - plain.bytes == 2 * elements + 2 * 4 * (GATE + 4)
    rows = 2 * 3 * (ATTENTION + GATE + 3 * EXPERT + 128)  # two rows of the draft extend, one more
    heads = 2 * 2 * 80
    attention = 2 * (8 + 9 + 10) * 2 * (5 + 3)
    assert drafting.flops - plain.flops == rows + heads + attention


def test_more_rows_read_the_same_weights() -> None:
    one = step_work(SMALL, Step(1, 9, 1, experts=4), size=4)
    three = step_work(SMALL, Step(3, 9, 1, experts=4), size=4)
    assert three.bytes - one.bytes == 4 * 2 * 8  # two more rows of the embedding
    assert 2 < three.flops / one.flops < 3  # the head is for one row


def test_several_requests_read_the_weights_once_and_their_own_entries() -> None:
    one = step_work(SMALL, Step(2, 9, 2, experts=4, drafts=2, extended=1.5), size=4)
    three = step_work(SMALL, Step(6, 9, 6, experts=4, drafts=2, extended=4.5, requests=3), size=4)
    assert three.flops == 3 * one.flops
    # 4 more rows of the embedding, and as many of both draft passes; entries of the target's layers and the
    # drafter's, whose second pass sees one position more
    rows = 4 + (4.5 - 1.5) + 2
    assert three.bytes - one.bytes == 4 * (rows * 8 + 2 * (2 * 9 + 9 + 10) * 5)


@pytest.mark.parametrize("cfg", [ModelConfig.from_folder(model_folder(EMBEDDED)), GROUPED, BIASED])
def test_all_experts_and_no_context_is_the_checkpoint(cfg: ModelConfig) -> None:
    """Every tensor of a target, each once, but for the embedding's other rows."""
    experts = (cfg.num_hidden_layers - cfg.first_k_dense_replace) * cfg.n_routed_experts
    work = step_work(cfg, Step(rows=1, end=0, chosen=1, experts=experts), size=4)
    tensors = expected_tensors(cfg, 0).values()
    assert work.bytes == 4 * (sum(map(math.prod, tensors)) - (cfg.vocab_size - 1) * cfg.hidden_size)
