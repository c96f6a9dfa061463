"""The oracle nobody here wrote: transformers' own classes, and random checkpoints to compare on.

Written without nextn's loader and layers; only the names and shapes of a checkpoint come from nextn.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from support.checkpoints import gqa_config, random_tensors, tiny_config, write_checkpoint
from tokenizers import Tokenizer
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    Glm4MoeLiteConfig,
    Glm4MoeLiteForCausalLM,
)
from transformers.utils import logging

import nextn
from nextn.families.config import ModelConfig
from nextn.models.names import expected_tensors

PACKAGE_DATA = Path(nextn.__file__).parent / "data"
TINY = PACKAGE_DATA / "nextn-tiny"

logging.set_verbosity_error()
logging.disable_progress_bar()


GLM_FLASH = {
    "architectures": ["Glm4MoeLiteForCausalLM"], "model_type": "glm4_moe_lite", "n_group": 1, "topk_group": 1,
    "routed_scaling_factor": 1.8, "rms_norm_eps": 1e-5, "n_shared_experts": 1, "rope_scaling": None,
    "rope_theta": 1000000.0, "partial_rotary_factor": 1.0,
}  # fmt: skip
JOYAI_FLASH = {  # its config.json has DeepSeek-V3's architecture
    "model_type": "joyai_llm_flash", "n_group": 1, "topk_group": 1, "n_shared_experts": 1,
    "rope_scaling": None, "rope_theta": 32000000,
}  # fmt: skip
DEEPSEEK_V2_LITE = {
    "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "scoring_func": "softmax",
    "topk_method": "greedy", "norm_topk_prob": False, "n_group": 1, "topk_group": 1, "q_lora_rank": None,
    "routed_scaling_factor": 1.0,
    "rope_scaling": {
        "type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 0.707,
        "mscale_all_dim": 0.707, "original_max_position_embeddings": 64,
    },
}  # fmt: skip
DEEPSEEK_V2 = {
    **DEEPSEEK_V2_LITE, "topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2,
    "q_lora_rank": 12, "routed_scaling_factor": 16.0,
}  # fmt: skip
FIRST_MASKED, DENSE_MODULE = "glm4_moe_lite", "joyai_llm_flash"  # by what is special of their NextN modules


def random_checkpoint(
    changes: Mapping[str, Any], seed: int, architecture: str = "DeepseekV3ForCausalLM"
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """(config.json, tensors) of `tiny_config` or `gqa_config` with `changes`; f32, with its NextN layers.

    Norms are not 1 and the routers' correction biases not 0, so that leaving one out shows. Logits have
    a standard deviation of about 1.
    """
    mla = architecture == "DeepseekV3ForCausalLM"
    config = tiny_config(**changes) if mla else gqa_config(architecture, **changes)
    cfg = ModelConfig.from_dict(config)
    tensors = random_tensors(expected_tensors(cfg, cfg.num_nextn_predict_layers), seed, torch.float32)
    gen = torch.Generator().manual_seed(seed)
    for name, tensor in tensors.items():
        if tensor.dim() == 1:
            spread = 0.1 if name.endswith("e_score_correction_bias") else 0.3
            tensor += spread * torch.randn(tensor.shape, generator=gen)
    if cfg.tie_word_embeddings:
        tensors["model.embed_tokens.weight"] *= cfg.hidden_size**-0.5
    return config, tensors


def tiny_prompts() -> list[list[int]]:
    """Beginnings of held-out texts, for nextn-tiny."""
    tokenizer = Tokenizer.from_file(str(TINY / "tokenizer.json"))
    lines = (PACKAGE_DATA / "heldout.jsonl").read_text(encoding="utf-8").splitlines()
    texts = [json.loads(line)["prompt"] for line in lines[:3]]
    return [tokenizer.encode(t).ids[:n] for t, n in zip(texts, (9, 22, 40), strict=True)]


def more_layers(source: Path, folder: Path, layers: int) -> Path:
    """A copy of a checkpoint with one NextN layer that has `layers` of them, a little different each, so that
    drafts still hold."""
    config = json.loads((source / "config.json").read_text())
    tensors: dict[str, Tensor] = {}
    for file in source.glob("*.safetensors"):
        tensors |= load_file(file)
    gen = torch.Generator().manual_seed(0)
    first = config["num_hidden_layers"]
    for name in [name for name in tensors if name.startswith(f"model.layers.{first}.")]:
        for k in range(1, layers):
            own, spread = tensors[name], 0.1 * tensors[name].float().std()
            noise = spread * torch.randn(own.shape, generator=gen)
            more = name.replace(f".{first}.", f".{first + k}.", 1)
            tensors[more] = (own.float() + (noise if own.dim() == 2 else 0.0)).to(own.dtype)
    config["num_nextn_predict_layers"] = layers
    return write_checkpoint(folder, config, tensors)


def in_transformers(folder: Path) -> Path:
    """The folder, or, where transformers has no class for it, one in it for a class that computes the same:
    MiMo is Qwen2, its modules are named as layers behind the last."""
    config = json.loads((folder / "config.json").read_text())
    if config.get("model_type") != "mimo":
        return folder
    config |= {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}
    tensors: dict[str, Tensor] = {}
    for file in folder.glob("*.safetensors"):
        for name, tensor in load_file(file).items():
            module = re.fullmatch(r"model\.mtp_layers\.(\d+)\.(.*)", name)
            number = config["num_hidden_layers"] + int(module[1]) if module else 0
            tensors[f"model.layers.{number}.{module[2]}" if module else name] = tensor
    return write_checkpoint(folder / "as_qwen2", config, tensors)


def load_oracle(folder: Path, layers: int | None = None) -> Any:
    """The checkpoint in transformers, f32, in its plainest implementations.

    layers: build this many instead of num_hidden_layers; a NextN module's decoder layer is layer
    num_hidden_layers, and transformers loads it as one more when asked for one more. Where it is dense, that
    takes a class which has a list of its layers' kinds: GLM's, whose arithmetic is DeepSeek-V3's.
    """
    folder = in_transformers(folder)
    data = json.loads((folder / "config.json").read_text())
    first, kind = data["num_hidden_layers"], data["model_type"]
    build = layers or first
    config: Any
    cls: Any = AutoModelForCausalLM
    if kind == "glm4_moe_lite" or (kind == DENSE_MODULE and build > first):
        dense = data["first_k_dense_replace"]
        config, cls = Glm4MoeLiteConfig.from_pretrained(folder), Glm4MoeLiteForCausalLM
        config.mlp_layer_types = ["dense" if i < dense else "sparse" for i in range(build)]
        if kind == DENSE_MODULE:
            config.mlp_layer_types[first:] = ["dense"] * (build - first)
    elif kind == DENSE_MODULE:
        config, cls = DeepseekV3Config.from_pretrained(folder), DeepseekV3ForCausalLM
    else:
        config = AutoConfig.from_pretrained(folder)
        if getattr(config, "layer_types", None) is not None:
            config.layer_types = ["full_attention"] * build
    config.num_hidden_layers, config.model_type = build, type(config).model_type
    model, info = cls.from_pretrained(
        folder,
        config=config,
        dtype=torch.float32,
        attn_implementation="eager",
        experts_implementation="eager",
        output_loading_info=True,
    )
    assert not info["missing_keys"] - ({"lm_head.weight"} if config.tie_word_embeddings else set())
    assert not info["mismatched_keys"], info["mismatched_keys"]
    return model.eval()


@torch.no_grad()
def oracle_logits(model: Any, tokens: list[int]) -> Tensor:
    """[len(tokens), vocab] f32."""
    return model(torch.tensor([tokens]), use_cache=False).logits[0]
