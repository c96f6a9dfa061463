"""The native model: against plain torch in f32, and its bits however a sequence is cut and in any company.

The native model rounds to bf16 what products and attention read (relative error 2**-9 each time), the other
nothing: so they differ by about a hundredth. What is compared is the size of the difference, as a root mean
square relative to that of the values. A small difference can send a row to other experts; in the cases below,
unless all experts are open, it does not.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from parity.oracle import DEEPSEEK_V2, GLM_FLASH, JOYAI_FLASH, random_checkpoint
from support.checkpoints import quantize_tensors
from support.native_kernels import at_level, built_levels
from support.native_model import feed, in_chunks, in_single_tokens, native_model, reference_model, whole
from torch import Tensor

from nextn.config import CPU_LEVELS
from nextn.families.config import ModelConfig
from nextn.models.fp8 import dequantize
from nextn.models.names import expected_tensors
from nextn.models.native import NativeModel
from nextn.ops.cpu.interface import E4M3
from nextn.ops.int4 import quantize_int4
from nextn.ops.stored import FP8, INT4, W8A16, Format
from nextn.ops.widen import widened

BOUND = 0.02
OPEN = {"num_experts_per_tok": 8, "topk_group": 4}
CASES: dict[str, dict[str, Any]] = {
    "every expert open": OPEN,
    "no q_lora": {**OPEN, "q_lora_rank": None},
    "dense": {"first_k_dense_replace": 3},
    "moe from the first layer, no shared expert": {**OPEN, "first_k_dense_replace": 0, "n_shared_experts": 0},
    "weights not normalized": {**OPEN, "norm_topk_prob": False, "routed_scaling_factor": 0.3},
    "tied embeddings": {**OPEN, "tie_word_embeddings": True},
    "no yarn": {**OPEN, "rope_scaling": None},
    "odd widths": {
        **OPEN, "hidden_size": 51, "num_attention_heads": 3, "num_key_value_heads": 3, "vocab_size": 37,
        "intermediate_size": 33, "moe_intermediate_size": 13, "q_lora_rank": 13, "kv_lora_rank": 17,
        "qk_nope_head_dim": 5, "qk_rope_head_dim": 6, "v_head_dim": 15,
    },
    "GLM-4.7-Flash": {**GLM_FLASH, "num_experts_per_tok": 8},
    "JoyAI-LLM-Flash": {**JOYAI_FLASH, "num_experts_per_tok": 8},
    "DeepSeek-V2": {**DEEPSEEK_V2, **OPEN, "routed_scaling_factor": 4.0},
    "wider than a panel": {
        **OPEN, "hidden_size": 200, "num_attention_heads": 5, "num_key_value_heads": 5, "vocab_size": 333,
        "intermediate_size": 150, "moe_intermediate_size": 70, "q_lora_rank": 90, "kv_lora_rank": 80,
        "qk_nope_head_dim": 33, "qk_rope_head_dim": 32, "v_head_dim": 40,
    },
}  # fmt: skip
GROUPS: dict[str, Any] = {}  # the tiny config's own: 2 of 4 groups, 3 of 8 experts


def tokens(vocab: int, length: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(vocab), k=length)


def apart(a: Tensor, b: Tensor) -> float:
    """Root mean square of the difference, relative to that of b."""
    return float((a - b).square().mean().sqrt() / b.square().mean().sqrt())


def one_at_a_time(model: Any, prompts: list[list[int]]) -> list[tuple[Tensor, ...]]:
    return [feed(model, [p], whole([p]))[0] for p in prompts]


@pytest.mark.parametrize("name", CASES)
def test_against_f32(name: str) -> None:
    config, tensors = random_checkpoint(CASES[name], seed=list(CASES).index(name))
    prompt = tokens(config["vocab_size"], 60)
    want = feed(reference_model(config, tensors), [prompt], [[60]])[0]
    for level in built_levels():
        with at_level(level):
            got = feed(native_model(config, tensors), [prompt], [[60]])[0]
        for what, a, b in zip(("hidden", "logits", "drafted"), got, want, strict=True):
            assert apart(a, b) < BOUND, (level, what)
            assert (a - b).abs().max() < 10 * BOUND * b.square().mean().sqrt(), (level, what)


def test_groups_against_f32() -> None:
    """Routing by groups; rows that bf16 sends to other experts are few, and the others agree."""
    config, tensors = random_checkpoint(GROUPS, seed=40)
    prompt = tokens(48, 200)
    got = feed(native_model(config, tensors), [prompt], [[200]])[0]
    want = feed(reference_model(config, tensors), [prompt], [[200]])[0]
    for a, b in zip(got, want, strict=True):
        by_row = (a - b).square().mean(-1).sqrt() / b.square().mean().sqrt()
        assert by_row.median() < BOUND
        assert (by_row < 3 * BOUND).float().mean() > 0.8


def test_two_key_blocks_against_f32() -> None:
    config, tensors = random_checkpoint({**OPEN, "max_position_embeddings": 700, "num_hidden_layers": 2}, 20)
    prompt = tokens(48, 560)
    got = feed(native_model(config, tensors, threads=2), [prompt], in_chunks([prompt], 200, 0))[0]
    want = feed(reference_model(config, tensors), [prompt], [[560]])[0]
    for a, b in zip(got, want, strict=True):
        assert apart(a, b) < BOUND
        assert apart(a[500:], b[500:]) < BOUND


def test_garbage_in_a_checkpoint_shows() -> None:
    """The bound can fail: swap two experts, forget a norm, or take the halves of eh_proj the wrong way."""
    config, tensors = random_checkpoint(OPEN, seed=0)
    prompt = tokens(48, 60)
    want = feed(reference_model(config, tensors), [prompt], [[60]])[0]
    at = "model.layers.1.mlp.experts."
    swapped = {**tensors, f"{at}0.down_proj.weight": tensors[f"{at}1.down_proj.weight"]}
    forgot = {**tensors, "model.layers.2.self_attn.kv_a_layernorm.weight": torch.ones(10)}
    for wrong in (swapped, forgot):
        assert apart(feed(native_model(config, wrong), [prompt], [[60]])[0][0], want[0]) > BOUND
    name = "model.layers.3.eh_proj.weight"
    turned = {**tensors, name: tensors[name].roll(32, dims=1)}
    assert apart(feed(native_model(config, turned), [prompt], [[60]])[0][2], want[2]) > 0.2


@pytest.mark.parametrize("level", CPU_LEVELS)
@pytest.mark.parametrize(
    "name",
    ["groups", "no q_lora", "dense", "odd widths", "wider than a panel", "GLM-4.7-Flash", "DeepSeek-V2"],
)
def test_bits_do_not_depend_on_cuts_company_and_threads(name: str, level: str) -> None:
    changes = {**CASES.get(name, GROUPS), "max_position_embeddings": 600, "num_hidden_layers": 2}
    changes |= {"num_experts_per_tok": 3, "first_k_dense_replace": int(name != "dense") or 2}
    changes["topk_group"] = min(2, changes.get("n_group", 2))
    config, tensors = random_checkpoint(changes, seed=7)
    vocab = config["vocab_size"]
    prompts = [tokens(vocab, n, seed=n) for n in (1, 23, 9, 262)]
    with at_level(level):
        want = one_at_a_time(native_model(config, tensors), prompts)
        for threads, page_size in ((1, 16), (2, 1), (5, 4)):
            model = native_model(config, tensors, threads)
            for cuts in (whole(prompts), in_chunks(prompts, 40, threads)):
                assert_equal(feed(model, prompts, cuts, page_size, seed=threads), want)
        short = prompts[:3]
        assert_equal(feed(model, short, in_single_tokens(short), seed=9), want[:3])


@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    widths=st.lists(st.integers(1, 70), min_size=9, max_size=9),
    heads=st.integers(1, 6),
    experts=st.sampled_from([(0, 1, 1, 0), (2, 1, 1, 1), (6, 3, 2, 4), (10, 5, 5, 3), (33, 1, 1, 8)]),
    shared=st.integers(0, 2),
    compressed=st.booleans(),
    quantize=st.sampled_from([None, W8A16, Format(INT4, 32, zeros=True)]),
    seed=st.integers(0, 99),
)
def test_bits_of_any_model(
    widths: list[int],
    heads: int,
    experts: tuple[int, int, int, int],
    shared: int,
    compressed: bool,
    quantize: Format | None,
    seed: int,
) -> None:
    """experts: their number, groups, open groups, and how many a token has."""
    hidden, vocab, inner, expert_inner, q_rank, rank, nope, rope, value = widths
    count, groups, top_groups, top_k = experts
    changes = {
        "hidden_size": hidden, "vocab_size": vocab + 1, "intermediate_size": inner,
        "moe_intermediate_size": expert_inner, "q_lora_rank": q_rank if compressed else None,
        "kv_lora_rank": rank, "qk_nope_head_dim": nope, "qk_rope_head_dim": rope + rope % 2,
        "v_head_dim": value, "num_attention_heads": heads, "num_key_value_heads": heads,
        "n_routed_experts": count, "n_group": groups, "topk_group": top_groups, "n_shared_experts": shared,
        "num_experts_per_tok": top_k, "num_hidden_layers": 2,
    }  # fmt: skip
    config, tensors = random_checkpoint(changes, seed)
    prompts = [tokens(vocab + 1, n, seed) for n in (20, 3)]
    want = one_at_a_time(native_model(config, tensors, quantize=quantize), prompts)
    model = native_model(config, tensors, threads=2, quantize=quantize)
    assert_equal(feed(model, prompts, in_chunks(prompts, 7, seed), seed=seed), want)
    for values in want:
        assert all(t.isfinite().all() for t in values)


def test_bits_of_a_long_prompt() -> None:
    """Over two blocks of keys: whole, in chunks that cross them, and token by token at the end."""
    config, tensors = random_checkpoint({"max_position_embeddings": 600, "num_hidden_layers": 2}, seed=8)
    prompts = [tokens(48, 530), tokens(48, 140, seed=1)]
    want = one_at_a_time(native_model(config, tensors), prompts)
    model = native_model(config, tensors, threads=3)
    for longest in (60, 300):
        assert_equal(feed(model, prompts, in_chunks(prompts, longest, longest)), want)
    assert_equal(feed(model, prompts[:1], [[250, *[1] * 12, 248, *[1] * 20]]), want[:1])


def assert_equal(got: list[tuple[Tensor, ...]], want: list[tuple[Tensor, ...]]) -> None:
    for mine, theirs in zip(got, want, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            assert torch.equal(a, b)


def test_logits_of_some_rows() -> None:
    config, tensors = random_checkpoint({}, seed=3)
    model = native_model(config, tensors, threads=2)
    hidden, logits, _ = feed(model, [tokens(48, 100)], [[100]])[0]
    for rows in ([5], [99, 0], list(range(3, 60)), []):
        assert torch.equal(model.logits(hidden[rows]), logits[rows])


QUANTIZATION = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}


@pytest.mark.parametrize("block", [128, 32])
def test_fp8_as_stored(block: int) -> None:
    """Matrices kept in e4m3 agree with the same checkpoint dequantized, and take half the memory."""
    sizes = {
        **OPEN, "hidden_size": 200, "intermediate_size": 150, "moe_intermediate_size": 130,
        "q_lora_rank": 140, "kv_lora_rank": 136, "num_attention_heads": 3, "num_key_value_heads": 3,
        "num_hidden_layers": 2,
    }  # fmt: skip
    config, tensors = random_checkpoint(sizes, seed=21)
    stored = quantize_tensors(tensors, block)
    names = [n for n, t in stored.items() if t.dtype == torch.float8_e4m3fn]
    pair = (block, block)
    plain = {
        **tensors,
        **{n: dequantize(stored[n], stored[f"{n}_scale_inv"], pair, torch.float32) for n in names},
    }
    config8 = {**config, "quantization_config": {**QUANTIZATION, "weight_block_size": [block, block]}}
    model = native_model_fp8(config8, stored, plain, names)
    assert {w.kind for w in model.weights.packed} > {E4M3}
    kept = {n for n in names if "kv_b_proj" not in n}
    assert model.weights.as_stored == kept
    prompt = tokens(48, 60)
    got = feed(model, [prompt], [[60]])[0]
    want = feed(reference_model(config, plain), [prompt], [[60]])[0]
    for a, b in zip(got, want, strict=True):
        assert apart(a, b) < BOUND
    assert_equal(feed(model, [prompt], in_chunks([prompt], 9, 0)), [got])
    bf16 = native_model(config, plain)
    saved = sum(stored[n].numel() for n in kept)
    assert saved * 0.9 < bf16.weight_bytes - model.weight_bytes < saved * 1.05


def native_model_fp8(
    config: dict[str, Any], stored: dict[str, Tensor], plain: dict[str, Tensor], names: list[str]
) -> Any:
    cfg = ModelConfig.from_dict(config)
    rows, columns = cfg.quantization.weight_block_size  # type: ignore[union-attr]
    model = NativeModel(cfg, 1, 1, stored=dict.fromkeys(names, Format(FP8, columns)))
    for name in expected_tensors(cfg, 1):
        if name in model.weights.as_stored:
            scale = stored[f"{name}_scale_inv"].repeat_interleave(rows, 0)[: stored[name].shape[0]]
            model.place(name, stored[name], scale)
        else:
            model.place(name, plain[name])
    return model


def test_fp8_blocks_of_odd_width_are_dequantized() -> None:
    """The kernels read inputs in pairs, so no pair may lie in two blocks."""
    config, tensors = random_checkpoint(OPEN, seed=22)
    stored = quantize_tensors(tensors, 15)
    names = [n for n, t in stored.items() if t.dtype == torch.float8_e4m3fn]
    plain = {
        **tensors,
        **{n: dequantize(stored[n], stored[f"{n}_scale_inv"], (15, 15), torch.float32) for n in names},
    }
    config8 = {**config, "quantization_config": {**QUANTIZATION, "weight_block_size": [15, 15]}}
    model = native_model_fp8(config8, stored, plain, names)
    assert not model.weights.as_stored
    prompt = tokens(48, 40)
    assert_equal(feed(model, [prompt], [[40]]), feed(native_model(config, plain), [prompt], [[40]]))


def test_w8a16_error() -> None:
    """int8 with a scale per output: three times the error of bf16."""
    config, tensors = random_checkpoint({**CASES["wider than a panel"], "rope_scaling": None}, seed=5)
    prompt = tokens(333, 60)
    model = native_model(config, tensors, quantize=W8A16)
    got = feed(model, [prompt], [[60]])[0]
    want = feed(reference_model(config, tensors), [prompt], [[60]])[0]
    for a, b in zip(got, want, strict=True):
        assert BOUND / 2 < apart(a, b) < 2 * BOUND
    assert_equal(feed(model, [prompt], in_chunks([prompt], 9, 0)), [got])
    assert model.weight_bytes < 0.75 * native_model(config, tensors).weight_bytes


FOUR_BITS = {
    **OPEN, "hidden_size": 256, "vocab_size": 100, "intermediate_size": 384, "moe_intermediate_size": 128,
    "q_lora_rank": 96, "kv_lora_rank": 64, "qk_nope_head_dim": 32, "v_head_dim": 64, "num_hidden_layers": 2,
}  # fmt: skip


def as_int8(weight: Tensor) -> Tensor:
    scale = weight.abs().amax(1, keepdim=True) / 127
    return torch.round(weight / scale) * scale


@pytest.mark.parametrize(("group", "zeros"), [(32, True), (64, True), (128, False)])
def test_w4a16(group: int, zeros: bool) -> None:
    """As close to plain torch on the same weights as bf16 is, and its bits depend on nothing beside a row. In
    int8 are NextN layers, what is read by head, and matrices whose inputs are no whole groups."""
    config, tensors = random_checkpoint(FOUR_BITS, seed=6)
    coarse = dict(tensors)
    for name, tensor in tensors.items():
        if (
            "_proj" in name
            and ".layers.2." not in name
            and "kv_b" not in name
            and tensor.shape[1] % group == 0
        ):
            coarse[name] = widened(quantize_int4(tensor, group, zeros), torch.float32)
        elif "_proj" in name:
            coarse[name] = as_int8(tensor)
    prompts = [tokens(100, n) for n in (60, 7)]
    [want, _] = feed(reference_model(config, coarse), prompts, whole(prompts))
    for level in built_levels():
        with at_level(level):
            model = native_model(config, tensors, quantize=Format(INT4, group, zeros))
            got = one_at_a_time(model, prompts)
            for a, b in zip(got[0], want, strict=True):
                assert apart(a, b) < BOUND, level
            other = native_model(config, tensors, 3, quantize=Format(INT4, group, zeros))
            assert_equal(feed(other, prompts, in_chunks(prompts, 9, 0)), got)
    left = {name.split(".")[-2] for name in model.weights.int8_fallbacks}
    assert left == ({"q_b_proj"} if group > 32 else set())


def test_a_second_pool() -> None:
    """A model may go on to another pool; what it wrote into the first is not there."""
    config, tensors = random_checkpoint({}, seed=3)
    model = native_model(config, tensors)
    first, again = (feed(model, [tokens(48, 30)], [[30]], page_size) for page_size in (4, 16))
    assert_equal(first, again)
