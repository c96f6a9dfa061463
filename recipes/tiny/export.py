"""Writes a trained `nextn-tiny` to a folder in exactly DeepSeek's file layout.

`python recipes/tiny/export.py --weights build/tiny/trunk.pt --tokenizer build/tiny/tokenizer.json OUT`

The folder has config.json, generation_config.json, model.safetensors (bf16; the router's correction biases
are f32, as in DeepSeek's files), tokenizer.json and tokenizer_config.json. The NextN module is layer
`num_hidden_layers`; its `embed_tokens` and `shared_head.head` are copies of the target's.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import torch
from model import Tiny, TinyConfig
from safetensors.torch import save_file
from tokens import tokenizer_config
from torch import Tensor

MAX_BYTES = 40_000_000


def config_json(cfg: TinyConfig) -> dict[str, object]:
    """config.json with DeepSeek-V3's keys, without those for remote code and FP8."""
    return {
        "architectures": ["DeepseekV3ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "ep_size": 1,
        "first_k_dense_replace": cfg.first_k_dense_replace,
        "hidden_act": "silu",
        "hidden_size": cfg.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": cfg.intermediate_size,
        "kv_lora_rank": cfg.kv_lora_rank,
        "max_position_embeddings": cfg.max_position_embeddings,
        "model_type": "deepseek_v3",
        "moe_intermediate_size": cfg.moe_intermediate_size,
        "moe_layer_freq": 1,
        "n_group": cfg.n_group,
        "n_routed_experts": cfg.n_routed_experts,
        "n_shared_experts": cfg.n_shared_experts,
        "norm_topk_prob": True,
        "num_attention_heads": cfg.num_attention_heads,
        "num_experts_per_tok": cfg.num_experts_per_tok,
        "num_hidden_layers": cfg.num_hidden_layers,
        "num_key_value_heads": cfg.num_attention_heads,
        "num_nextn_predict_layers": 1,
        "pretraining_tp": 1,
        "q_lora_rank": cfg.q_lora_rank,
        "qk_nope_head_dim": cfg.qk_nope_head_dim,
        "qk_rope_head_dim": cfg.qk_rope_head_dim,
        "rms_norm_eps": cfg.rms_norm_eps,
        "rope_scaling": {
            "beta_fast": cfg.beta_fast,
            "beta_slow": cfg.beta_slow,
            "factor": cfg.rope_factor,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "original_max_position_embeddings": cfg.rope_original,
            "type": "yarn",
        },
        "rope_theta": cfg.rope_theta,
        "routed_scaling_factor": cfg.routed_scaling_factor,
        "scoring_func": "sigmoid",
        "tie_word_embeddings": False,
        "topk_group": cfg.topk_group,
        "topk_method": "noaux_tc",
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "v_head_dim": cfg.v_head_dim,
        "vocab_size": cfg.vocab_size,
    }


def tensors(model: Tiny) -> dict[str, Tensor]:
    """The file's tensors: DeepSeek's name -> contiguous tensor in the file's dtype."""
    last = f"model.layers.{model.cfg.num_hidden_layers}"
    out: dict[str, Tensor] = {}
    for name, value in model.state_dict().items():
        if name.startswith("nextn.layer."):
            name = name.replace("nextn.layer", last)
        elif name.startswith("nextn."):
            name = name.replace("nextn", last).replace("shared_head_norm", "shared_head.norm")
        elif not name.startswith("lm_head."):
            name = f"model.{name}"
        keep = name.endswith("e_score_correction_bias")
        out[name] = value.detach().to(torch.float32 if keep else torch.bfloat16).contiguous()
    out[f"{last}.embed_tokens.weight"] = out["model.embed_tokens.weight"].clone()
    out[f"{last}.shared_head.head.weight"] = out["lm_head.weight"].clone()
    return out


def write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def export(model: Tiny, tokenizer: Path, out: Path) -> int:
    """Writes the folder and returns its size in bytes. Raises ValueError if it is larger than MAX_BYTES."""
    out.mkdir(parents=True, exist_ok=True)
    weights = out / "model.safetensors"
    save_file(tensors(model), str(weights), metadata={"format": "pt"})
    weights.chmod(0o644)
    write_json(out / "config.json", config_json(model.cfg))
    write_json(
        out / "generation_config.json",
        {
            "_from_model_config": True,
            "bos_token_id": 0,
            "do_sample": True,
            "eos_token_id": 1,
            "temperature": 0.7,
            "top_p": 0.95,
        },
    )
    write_json(out / "tokenizer_config.json", tokenizer_config())
    shutil.copyfile(tokenizer, out / "tokenizer.json")
    size = sum(f.stat().st_size for f in out.iterdir())
    if size > MAX_BYTES:
        raise ValueError(f"{out} holds {size} bytes, more than {MAX_BYTES}: make the model smaller")
    return size


def load_weights(path: Path, cfg: TinyConfig | None = None) -> Tiny:
    """Loads a model from `trunk.pt` or `tuned.pt` (a state dict) or from `training.pt`, in eval mode."""
    state = torch.load(path, map_location="cpu")
    model = Tiny(cfg or TinyConfig())
    model.load_state_dict(state.get("model", state))
    return model.eval()


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--weights", type=Path, default=Path("build/tiny/tuned.pt"))
    ap.add_argument("--tokenizer", type=Path, default=Path("build/tiny/tokenizer.json"))
    ap.add_argument("out", type=Path)
    args = ap.parse_args()
    print(f"{args.out}: {export(load_weights(args.weights), args.tokenizer, args.out) / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
