"""Families with grouped-query attention on the native kernels: against plain torch in f32, and their bits
however a sequence is cut, in any company, and on any number of ranks.

test_native_model.py says why the bound is what it is.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from parity.oracle import random_checkpoint
from parity.test_native_model import BOUND, apart, assert_equal, one_at_a_time, tokens
from parity.test_native_ranks import on_ranks
from support.checkpoints import quantize_tensors
from support.native_kernels import at_level, built_levels
from support.native_model import feed, in_chunks, in_single_tokens, native_model, reference_model, whole
from torch import Tensor

from nextn.config import CPU_LEVELS
from nextn.families.config import ModelConfig
from nextn.models.fp8 import dequantize
from nextn.models.names import expected_tensors
from nextn.models.native import NativeModel
from nextn.ops.cpu.interface import E4M3, INT4Z
from nextn.ops.int4 import quantize_int4
from nextn.ops.stored import FP8, W8A16, Format, Stored
from nextn.ops.widen import widened

LLAMA, QWEN2, QWEN3 = "LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"
GLM, MIMO = "Glm4MoeForCausalLM", "MiMoForCausalLM"
MODULE = {"num_nextn_predict_layers": 1}
OPEN = {"num_experts_per_tok": 8}  # a small difference can send a row to other experts
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": (LLAMA, {}),
    "llama, biases, a key for each head": (LLAMA, {"attention_bias": True, "num_key_value_heads": 6}),
    "llama, one key, tied": (LLAMA, {"num_key_value_heads": 1, "tie_word_embeddings": True}),
    "qwen2": (QWEN2, {}),
    "qwen3": (QWEN3, {}),
    "mimo": (MIMO, {}),
    "glm": (GLM, OPEN),
    "glm, no norms": (GLM, {**OPEN, "use_qk_norm": False, "head_dim": 80, "num_attention_heads": 4}),
    "glm, odd sizes": (
        GLM,
        {
            **OPEN, "partial_rotary_factor": 0.25, "head_dim": 24, "hidden_size": 51, "vocab_size": 37,
            "num_attention_heads": 9, "num_key_value_heads": 3, "intermediate_size": 33,
            "moe_intermediate_size": 13,
        },
    ),
}  # fmt: skip


def checkpoint(name: str, **changes: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    architecture, own = CASES[name]
    return random_checkpoint({**MODULE, **own, **changes}, list(CASES).index(name), architecture)


@pytest.mark.parametrize("name", CASES)
def test_against_f32(name: str) -> None:
    config, tensors = checkpoint(name)
    prompt = tokens(config["vocab_size"], 60)
    want = feed(reference_model(config, tensors), [prompt], [[60]])[0]
    for level in built_levels():
        with at_level(level):
            got = feed(native_model(config, tensors), [prompt], [[60]])[0]
        for what, a, b in zip(("hidden", "logits", "drafted"), got, want, strict=True):
            assert apart(a, b) < BOUND, (level, what)
            assert (a - b).abs().max() < 10 * BOUND * b.square().mean().sqrt(), (level, what)


@pytest.mark.parametrize("wrong", ["q_norm", "k_proj.bias", "v_proj.bias", "k_proj.weight"])
def test_garbage_in_a_checkpoint_shows(wrong: str) -> None:
    """The bound can fail: where a norm or a bias is left out, or a key's elements are not in their order."""
    config, tensors = checkpoint("glm")
    prompt = tokens(48, 60)
    want = feed(reference_model(config, tensors), [prompt], [[60]])[0]
    (name,) = (n for n in tensors if n.startswith("model.layers.1.") and wrong in n)
    own = tensors[name]
    spoilt = own.roll(1, 0) if own.dim() == 2 else torch.ones_like(own) if "norm" in wrong else 0 * own
    got = feed(native_model(config, {**tensors, name: spoilt}), [prompt], [[60]])[0]
    assert apart(got[0], want[0]) > BOUND


def test_two_key_blocks_against_f32() -> None:
    config, tensors = checkpoint("glm", max_position_embeddings=700, num_hidden_layers=2)
    prompt = tokens(48, 560)
    got = feed(native_model(config, tensors, threads=2), [prompt], in_chunks([prompt], 200, 0))[0]
    want = feed(reference_model(config, tensors), [prompt], [[560]])[0]
    for a, b in zip(got, want, strict=True):
        assert apart(a, b) < BOUND
        assert apart(a[500:], b[500:]) < BOUND


@pytest.mark.parametrize("level", CPU_LEVELS)
@pytest.mark.parametrize("name", ["llama, biases, a key for each head", "qwen3", "mimo", "glm, odd sizes"])
def test_bits_do_not_depend_on_cuts_company_and_threads(name: str, level: str) -> None:
    changes = {"num_experts_per_tok": 3} if name.startswith("glm") else {}
    config, tensors = checkpoint(name, max_position_embeddings=600, num_hidden_layers=2, **changes)
    prompts = [tokens(config["vocab_size"], n, seed=n) for n in (1, 23, 9, 262)]
    with at_level(level):
        want = one_at_a_time(native_model(config, tensors), prompts)
        for threads, page_size in ((1, 16), (2, 1), (5, 4)):
            model = native_model(config, tensors, threads)
            for cuts in (whole(prompts), in_chunks(prompts, 40, threads)):
                assert_equal(feed(model, prompts, cuts, page_size, seed=threads), want)
        short = prompts[:3]
        assert_equal(feed(model, short, in_single_tokens(short), seed=9), want[:3])


WIDE = {
    "hidden_size": 256, "vocab_size": 333, "intermediate_size": 160, "head_dim": 24, "num_hidden_layers": 2,
    "max_position_embeddings": 600, "num_attention_heads": 12, "num_key_value_heads": 2,
}  # fmt: skip
RANKS: dict[str, tuple[str, dict[str, Any]]] = {
    "glm": (GLM, {**WIDE, "moe_intermediate_size": 128}),
    "llama, some heads of two": (LLAMA, {**WIDE, "num_key_value_heads": 3, "attention_bias": True}),
    "mimo": (MIMO, {**WIDE, "num_key_value_heads": 4}),
}  # fmt: skip


@pytest.mark.parametrize("name", RANKS)
def test_bits_do_not_depend_on_the_ranks(name: str) -> None:
    """Two and four ranks: a key-value head each, some of one's heads, or heads of several."""
    architecture, changes = RANKS[name]
    config, tensors = random_checkpoint({**MODULE, **changes}, 7, architecture)
    make = partial(native_model, config, tensors)
    [want] = on_ranks(config, make, 1)
    for size in (2, 4):
        for got in on_ranks(config, make, size):
            assert_equal(got, want)


def stored_model(
    config: dict[str, Any], tensors: dict[str, Any], stored: dict[str, Format], **options: Any
) -> NativeModel:
    """tensors: as files hold them; those in FP8 with their scales."""
    cfg = ModelConfig.from_dict(config)
    model = NativeModel(cfg, 1, stored=stored, **{"threads": 1, **options})
    for name in expected_tensors(cfg, 1):
        tensor, scale = tensors[name], tensors.get(f"{name}_scale_inv")
        if name in model.weights.as_stored and scale is not None:
            model.place(name, tensor, scale.repeat_interleave(64, 0)[: len(tensor)])
        elif scale is not None:
            model.place(name, dequantize(tensor, scale, (64, 64), torch.float32))
        elif isinstance(tensor, Stored) and name not in model.weights.as_stored:
            model.place(name, widened(tensor, torch.float32))
        else:
            model.place(name, tensor)
    return model


def test_fp8_as_stored() -> None:
    """Rows of a head, whose order changes, have scales of two blocks."""
    config, tensors = random_checkpoint({**MODULE, **WIDE, "head_dim": 48}, 8, MIMO)
    files = quantize_tensors(tensors, 64)
    names = [n for n, t in files.items() if t.dtype == torch.float8_e4m3fn]
    plain = {
        **tensors,
        **{n: dequantize(files[n], files[f"{n}_scale_inv"], (64, 64), torch.float32) for n in names},
    }
    make = partial(stored_model, config, files, dict.fromkeys(names, Format(FP8, 64)))
    model = make()
    assert {w.kind for w in model.weights.packed} > {E4M3}
    # MiMo's projection takes the hidden state first; the kernels want it last, which blocks do not allow.
    assert model.weights.as_stored == {n for n in names if "input_proj" not in n}
    prompt = tokens(333, 60)
    got = feed(model, [prompt], [[60]])[0]
    want = feed(reference_model(config, plain), [prompt], [[60]])[0]
    for a, b in zip(got, want, strict=True):
        assert apart(a, b) < BOUND
    [alone] = on_ranks(config, make, 1)
    for found in on_ranks(config, make, 2):
        assert_equal(found, alone)


def test_few_bits_as_stored() -> None:
    """In a layer values are in another format than queries and keys: so they are a matrix of their own.
    Columns in groups cannot be turned round, so MiMo's projection is widened."""
    config, tensors = random_checkpoint({**MODULE, **WIDE}, 9, MIMO)
    files: dict[str, Any] = dict(tensors)
    for name, tensor in tensors.items():
        if ("self_attn" in name and tensor.dim() == 2) or "input_proj" in name:
            files[name] = quantize_int4(tensor, 32, zeros=name == "model.layers.1.self_attn.v_proj.weight")
    stored = {n: t.format for n, t in files.items() if isinstance(t, Stored)}
    plain = {n: widened(t, torch.float32) if isinstance(t, Stored) else t for n, t in files.items()}
    make = partial(stored_model, config, files, stored)
    model = make()
    assert model.weights.as_stored == {n for n in stored if "input_proj" not in n}
    assert [w.shape[0] for w in model.weights.packed if w.kind == INT4Z] == [48]
    prompt = tokens(333, 60)
    got = feed(model, [prompt], [[60]])[0]
    want = feed(reference_model(config, plain), [prompt], [[60]])[0]
    for a, b in zip(got, want, strict=True):
        assert apart(a, b) < BOUND
    [alone] = on_ranks(config, make, 1)
    for found in on_ranks(config, make, 2):
        assert_equal(found, alone)


def test_w8a16_error() -> None:
    """int8 with a scale per output: three times the error of bf16."""
    config, tensors = random_checkpoint({**MODULE, **WIDE}, 5, QWEN3)
    prompt = tokens(333, 60)
    model = native_model(config, tensors, quantize=W8A16)
    got = feed(model, [prompt], [[60]])[0]
    want = feed(reference_model(config, tensors), [prompt], [[60]])[0]
    for a, b in zip(got, want, strict=True):
        assert BOUND / 2 < apart(a, b) < 2 * BOUND
    assert model.weight_bytes < 0.75 * native_model(config, tensors).weight_bytes


def test_heads_that_are_too_wide_are_refused() -> None:
    config, _ = random_checkpoint({"head_dim": 1032}, 1, LLAMA)
    with pytest.raises(ValueError, match="head_dim is 1032: the native kernels take at most 1024"):
        NativeModel(ModelConfig.from_dict(config), 0, 1)
