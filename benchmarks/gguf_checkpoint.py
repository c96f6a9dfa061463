"""Writes a GGUF file from a checkpoint folder in DeepSeek's layout, NextN layers and tokenizer included.

    python benchmarks/gguf_checkpoint.py DIR OUT.gguf                  # --type q8_0
    python benchmarks/gguf_checkpoint.py nextn-tiny tiny.gguf --type q4_k

Keys and names are those of llama.cpp's converter, which leaves out the NextN layers of DeepSeek's models.
Norms and routers are in f32. A matrix whose rows are not whole blocks of the type is stored in q8_0 or bf16.
The script needs `pip install gguf`, and memory for all weights. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import tokenizers
import torch
from gguf import GGMLQuantizationType as Type
from gguf_blocks import quantized
from torch import Tensor

from nextn.config import model_folder
from nextn.families.config import ModelConfig
from nextn.families.files import read_json
from nextn.gguf.pretokenizers import PRE_TOKENIZERS
from nextn.gguf.tokenizer import CONTROL, PLAIN, UNUSED, USER_DEFINED
from nextn.models.loader import load_checkpoint, stored_nextn_layers
from nextn.models.names import expected_tensors, nextn_prefixes, shared_tensors

TYPES = {
    name: Type[name.upper()]
    for name in ("f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q6_k")
}
LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.o_proj": "attn_output",
    "mlp.gate": "ffn_gate_inp",
    "eh_proj": "nextn.eh_proj",
    "enorm": "nextn.enorm",
    "hnorm": "nextn.hnorm",
    "shared_head.norm": "nextn.shared_head_norm",
    **{f"mlp.{side}_proj": f"ffn_{side}" for side in ("gate", "up", "down")},
    **{f"mlp.shared_experts.{side}_proj": f"ffn_{side}_shexp" for side in ("gate", "up", "down")},
}
WHOLE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
# Spaces, digits, letters of several scripts and signs, which pre-tokenizers treat differently.
SAMPLE = "I've 3 33 333 3333 3.14 'RE'll we'D\n\n \n  if x[0]!= \"a_b\":\r\n\treturn  {1:2}; ...!!! "
SAMPLE += "我想在apple工作1314 hétérogène É́T ĲΣ нещо на Български かな カナ 🚀 \u200d   trailing  "


def write_gguf(source: Path, out: Path, kind: Type, split: int = 0, nextn: bool = True) -> dict[str, Any]:
    """Writes the file. split: maximum number of tensors in a part (NAME-00001-of-0000N.gguf, ...); 0: one
    file. nextn: include NextN layers, if there are any. Returns the files, their bytes, and bits per weight.
    Raises ValueError if GGUF has no key for a setting of the checkpoint."""
    cfg = ModelConfig.from_folder(source)
    layers = stored_nextn_layers(source, cfg) if nextn else 0
    writer = gguf.GGUFWriter(str(out), "deepseek2", use_temp_file=not split, split_max_tensors=split)
    _add_config(writer, cfg, layers)
    _add_tokenizer(writer, source, cfg)
    values = 0
    for name, weight in _tensors(source, cfg, layers):
        values += weight.numel()
        of = type_of(name, weight, kind)
        array = weight.float().numpy()
        if of == Type.BF16:
            writer.add_tensor(name, gguf.quants.quantize(array, of), raw_dtype=of)
        elif of == Type.F32 or of == Type.F16:
            writer.add_tensor(name, array.astype(np.float32 if of == Type.F32 else np.float16))
        else:
            writer.add_tensor(name, quantized(array, of), raw_dtype=of)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    files = sorted(out.parent.glob(f"{out.stem}-*-of-*.gguf")) if split else [out]
    size = sum(os.path.getsize(file) for file in files)
    return {"files": [str(file) for file in files], "bytes": size, "bits_per_weight": size * 8 / values}


def type_of(name: str, weight: Tensor, kind: Type) -> Type:
    """The type of a tensor in the file. Vectors and routers are f32, as llama.cpp requires."""
    if weight.dim() == 1 or name.endswith("ffn_gate_inp.weight"):
        return Type.F32
    for choice in (kind, Type.Q8_0, Type.BF16):
        if weight.shape[-1] % gguf.GGML_QUANT_SIZES[choice][0] == 0:
            return choice
    raise AssertionError(name)


def _add_config(writer: gguf.GGUFWriter, cfg: ModelConfig, layers: int) -> None:
    writer.add_block_count(cfg.num_hidden_layers + layers)
    if layers:
        writer.add_uint32("deepseek2.nextn_predict_layers", layers)
    writer.add_context_length(cfg.max_position_embeddings)
    writer.add_embedding_length(cfg.hidden_size)
    writer.add_feed_forward_length(cfg.intermediate_size)
    writer.add_head_count(cfg.num_attention_heads)
    writer.add_head_count_kv(1)
    writer.add_rope_freq_base(cfg.rope_theta)
    writer.add_layer_norm_rms_eps(cfg.rms_norm_eps)
    writer.add_vocab_size(cfg.vocab_size)
    if cfg.q_lora_rank is not None:
        writer.add_q_lora_rank(cfg.q_lora_rank)
    writer.add_kv_lora_rank(cfg.kv_lora_rank)
    writer.add_key_length(cfg.latent_dim)
    writer.add_value_length(cfg.kv_lora_rank)
    writer.add_key_length_mla(cfg.qk_head_dim)
    writer.add_value_length_mla(cfg.v_head_dim)
    writer.add_rope_dimension_count(cfg.qk_rope_head_dim)
    writer.add_leading_dense_block_count(cfg.first_k_dense_replace)
    if cfg.n_routed_experts:
        writer.add_expert_count(cfg.n_routed_experts)
        writer.add_expert_used_count(cfg.num_experts_per_tok)
        writer.add_expert_shared_count(cfg.n_shared_experts)
        writer.add_expert_feed_forward_length(cfg.moe_intermediate_size)
        writer.add_expert_group_count(cfg.n_group)
        writer.add_expert_group_used_count(cfg.topk_group)
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        writer.add_expert_weights_scale(cfg.routed_scaling_factor)
        if cfg.norm_topk_prob:
            writer.add_expert_weights_norm(True)
    yarn = cfg.rope_scaling
    if yarn is None:
        return
    if yarn.mscale != yarn.mscale_all_dim and yarn.mscale_all_dim:
        raise ValueError("GGUF has no key for an mscale that is not mscale_all_dim")
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(yarn.factor)
    writer.add_rope_scaling_orig_ctx_len(yarn.original_max_position_embeddings)
    writer.add_rope_scaling_yarn_beta_fast(yarn.beta_fast)
    writer.add_rope_scaling_yarn_beta_slow(yarn.beta_slow)
    if yarn.mscale_all_dim:
        writer.add_rope_scaling_yarn_log_mul(0.1 * yarn.mscale_all_dim)


def _add_tokenizer(writer: gguf.GGUFWriter, source: Path, cfg: ModelConfig) -> None:
    file, settings = source / "tokenizer.json", read_json(source / "tokenizer_config.json")
    whole = read_json(file)
    added = {entry["content"]: entry for entry in whole["added_tokens"]}
    vocab = {**whole["model"]["vocab"], **{text: entry["id"] for text, entry in added.items()}}
    by_id = {number: text for text, number in vocab.items()}
    tokens, types = [], []
    for number in range(cfg.vocab_size):
        text = by_id.get(number)
        tokens.append(f"[PAD{number}]" if text is None else text)
        special = text in added and added[text]["special"]
        types.append(
            UNUSED if text is None else CONTROL if special else USER_DEFINED if text in added else PLAIN
        )
    pairs = [m if isinstance(m, str) else " ".join(m) for m in whole["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre_tokenizer(whole))
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(pairs)
    for name, add in (
        ("bos", writer.add_bos_token_id),
        ("eos", writer.add_eos_token_id),
        ("pad", writer.add_pad_token_id),
    ):
        content = settings.get(f"{name}_token")
        text = content["content"] if isinstance(content, dict) else content
        if text is not None:
            add(vocab[text])
    writer.add_add_bos_token(settings.get("add_bos_token") is True)
    template = source / "chat_template.jinja"
    found = template.read_text(encoding="utf-8") if template.is_file() else settings.get("chat_template")
    if found is not None:
        writer.add_chat_template(found)


def pre_tokenizer(whole: dict[str, Any]) -> str:
    """The name of a pre-tokenizer that cuts texts like this tokenizer.json. Raises ValueError if there is
    none."""
    want = _ids(whole)
    for name in sorted(PRE_TOKENIZERS, key=lambda name: name != "deepseek-v3"):
        pre = PRE_TOKENIZERS[name]
        same = {**whole["model"], "ignore_merges": pre.whole}
        if _ids({**whole, "pre_tokenizer": pre.json(), "model": same}) == want:
            return name
    raise ValueError("GGUF has no name for the pre-tokenizer in tokenizer.json")


def _ids(whole: dict[str, Any]) -> list[int]:
    ids: list[int] = tokenizers.Tokenizer.from_str(json.dumps(whole)).encode(SAMPLE).ids
    return ids


def _tensors(source: Path, cfg: ModelConfig, layers: int) -> Iterator[tuple[str, Tensor]]:
    """Yields (name, weight) in the file's names and shapes."""
    loaded: dict[str, Tensor] = {}
    load_checkpoint(
        source, expected_tensors(cfg, layers), loaded.__setitem__, quantization=cfg.quantization,
        shared=shared_tensors(cfg, layers), skip_prefixes=nextn_prefixes(cfg, layers),
    )  # fmt: skip
    names = cfg.names
    for name in list(loaded):
        if name not in loaded:
            continue
        stem, _, last = name.rpartition(".")
        if stem in WHOLE:
            yield f"{WHOLE[stem]}.{last}", loaded.pop(name)
            continue
        layer, rest = name.split(".")[2], ".".join(name.split(".")[3:])
        if rest == names.kv_up:
            nope, v = cfg.qk_nope_head_dim, cfg.v_head_dim
            both = loaded.pop(name).view(-1, nope + v, cfg.kv_lora_rank)
            yield f"blk.{layer}.attn_k_b.weight", both[:, :nope].transpose(1, 2).contiguous()
            yield f"blk.{layer}.attn_v_b.weight", both[:, nope:].contiguous()
        elif rest == names.router_bias:
            yield f"blk.{layer}.exp_probs_b.bias", loaded.pop(name)
        elif ".experts." in name:
            side = rest.split(".")[3].removesuffix("_proj")
            prefix, suffix = name.split(".experts.")[0], rest.split(".", 3)[3]
            each = [loaded.pop(f"{prefix}.experts.{e}.{suffix}") for e in range(cfg.n_routed_experts)]
            yield f"blk.{layer}.ffn_{side}_exps.weight", torch.stack(each)
        else:
            yield f"blk.{layer}.{LAYER[rest.rpartition('.')[0]]}.weight", loaded.pop(name)
    assert not loaded, sorted(loaded)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", metavar="DIR", help="checkpoint folder, or nextn-tiny")
    parser.add_argument("out", type=Path, metavar="OUT.gguf", help="file to write; it must not exist")
    parser.add_argument("--type", choices=TYPES, default="q8_0", help="type of the matrices (default: q8_0)")
    parser.add_argument("--split-tensors", type=int, default=0, metavar="N", help="write parts of N tensors")
    parser.add_argument("--without-nextn", action="store_true", help="leave NextN layers out")
    args = parser.parse_args(argv)
    if args.out.exists():
        parser.error(f"{args.out} exists")
    try:
        folder, kind = model_folder(args.source), TYPES[args.type]
        done = write_gguf(folder, args.out, kind, args.split_tensors, not args.without_nextn)
    except ValueError as e:
        parser.error(str(e))
    print(json.dumps(done))
    return 0


if __name__ == "__main__":
    sys.exit(main())
