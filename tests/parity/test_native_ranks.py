"""Native kernels on several ranks: hidden states, logits, drafts and cache entries have the bits of one rank.

Ranks are threads here, each with its own model over memory that all map. Processes are in
tests/e2e/test_identity.py.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import pytest
import torch
from parity.oracle import DEEPSEEK_V2, GLM_FLASH, JOYAI_FLASH, random_checkpoint
from support.checkpoints import quantize_tensors
from support.native_kernels import built_levels
from support.native_model import feed, in_chunks, native_model, whole
from torch import Tensor

from nextn.distributed.memory import Memory
from nextn.distributed.shared import SharedRanks
from nextn.families.config import ModelConfig
from nextn.models.fp8 import dequantize
from nextn.models.names import expected_tensors
from nextn.models.native import NativeModel
from nextn.models.native_weights import Drafting
from nextn.ops.stored import FP8, INT4, W8A16, Format

LEVELS = built_levels()
pytestmark = pytest.mark.skipif(not LEVELS, reason="no native kernels")

WIDE = {
    "hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 333,
    "intermediate_size": 150, "moe_intermediate_size": 128, "q_lora_rank": 90, "kv_lora_rank": 80,
    "qk_nope_head_dim": 32, "qk_rope_head_dim": 32, "v_head_dim": 40, "max_position_embeddings": 600,
    "num_hidden_layers": 2,
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "all": {},
    "no q_lora": {"q_lora_rank": None},
    "dense": {"first_k_dense_replace": 2},
    "no shared expert": {"n_shared_experts": 0, "first_k_dense_replace": 0},
    "tied, odd widths": {
        "tie_word_embeddings": True, "hidden_size": 250, "vocab_size": 261, "moe_intermediate_size": 100,
        "qk_nope_head_dim": 33, "v_head_dim": 41, "q_lora_rank": 13,
    },
    "GLM-4.7-Flash": GLM_FLASH,
    "JoyAI-LLM-Flash": JOYAI_FLASH,
    "DeepSeek-V2": DEEPSEEK_V2,
}  # fmt: skip
LENGTHS = (1, 23, 9, 262)  # of prompts
Found = list[tuple[Tensor, ...]]


def tokens(vocab: int, length: int) -> list[int]:
    return random.Random(length).choices(range(vocab), k=length)


Make = Callable[..., NativeModel]
Result = TypeVar("Result")


def of_ranks(make: Make, size: int, work: Callable[[NativeModel], Result]) -> list[Result]:
    """What each rank finds. make: its model, of its threads and ranks."""
    memory = Memory()

    def run(rank: int) -> Result:
        # Not more rows than the largest step has.
        ranks = SharedRanks(rank, size, memory, size, most_rows=sum(LENGTHS)) if size > 1 else None
        with torch.inference_mode():
            return work(make(threads=1 + rank % 2, ranks=ranks))

    with ThreadPoolExecutor(size) as threads:
        found = list(threads.map(run, range(size)))
    memory.close()
    return found


def on_ranks(config: Mapping[str, Any], make: Make, size: int) -> list[Found]:
    """Of the same steps."""
    prompts = [tokens(config["vocab_size"], n) for n in LENGTHS]

    def work(model: NativeModel) -> Found:
        cut = feed(model, prompts, in_chunks(prompts, 40, 1))
        return cut + feed(model, prompts, whole(prompts), page_size=16)

    return of_ranks(make, size, work)


def assert_equal(got: Found, want: Found) -> None:
    for mine, theirs in zip(got, want, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            assert torch.equal(a, b)


# Every case at the best level, one at the others.
@pytest.mark.parametrize(
    ("name", "level"), [*((name, LEVELS[-1]) for name in CASES), *(("all", level) for level in LEVELS[:-1])]
)
def test_bits_do_not_depend_on_the_ranks(name: str, level: str) -> None:
    config, tensors = random_checkpoint(WIDE | CASES[name], seed=7)
    make = partial(native_model, config, tensors, level=level)
    [want] = on_ranks(config, make, 1)
    for size in (2, 4) if name in ("all", "tied, odd widths") else (2,):
        for got in on_ranks(config, make, size):
            assert_equal(got, want)


OPTIONS: dict[str, dict[str, Any]] = {
    "int8": {"quantize": W8A16},
    "int4": {"quantize": Format(INT4, 32, zeros=True)},
    "token map": {"drafting": Drafting(tokens=tuple(range(0, 333, 2)))},
    "int8 drafts": {"drafting": Drafting(int8=True)},
}


@pytest.mark.parametrize("stored", OPTIONS)
def test_nor_where_weights_take_a_byte_or_less_or_drafts_some_tokens(stored: str) -> None:
    config, tensors = random_checkpoint(WIDE, seed=8)
    make = partial(native_model, config, tensors, **OPTIONS[stored])
    [want] = on_ranks(config, make, 1)
    for got in on_ranks(config, make, 2):
        assert_equal(got, want)


def fp8_model(
    changes: Mapping[str, Any], seed: int, block: int, but: str | None = None
) -> tuple[dict[str, Any], Make]:
    """(config.json, makes the model) of a checkpoint in FP8 blocks, `but` for what has this in its name."""
    config, tensors = random_checkpoint(changes, seed)
    config["quantization_config"] = {
        "quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [block, block],
        "activation_scheme": "dynamic",
    }  # fmt: skip
    stored = quantize_tensors(tensors, block)
    if but is not None:
        for name in [name for name in tensors if but in name]:
            stored.pop(f"{name}_scale_inv", None)
            stored[name] = tensors[name]
    names = [n for n, t in stored.items() if t.dtype == torch.float8_e4m3fn]

    def make(threads: int = 1, **options: Any) -> NativeModel:
        formats = dict.fromkeys(names, Format(FP8, block))
        model = NativeModel(ModelConfig.from_dict(config), 1, threads, stored=formats, **options)
        for name in expected_tensors(model.config, 1):
            scale = stored.get(f"{name}_scale_inv")
            if name in model.weights.as_stored:
                assert scale is not None
                model.place(name, stored[name], scale.repeat_interleave(block, 0)[: len(stored[name])])
            elif scale is not None:
                model.place(name, dequantize(stored[name], scale, (block, block), torch.float32))
            else:
                model.place(name, tensors[name])
        return model

    return config, make


@pytest.mark.parametrize("block", [128, 48])
def test_nor_where_they_are_fp8_blocks(block: int) -> None:
    """A part may begin within a block."""
    config, make = fp8_model(WIDE, 9, block)
    [want] = on_ranks(config, make, 1)
    for got in on_ranks(config, make, 4):
        assert_equal(got, want)


@pytest.mark.parametrize(
    ("size", "changes", "said"),
    [
        (3, {}, "--tp-size 3: the model's 4 heads"),
        (4, {"hidden_size": 190}, "--tp-size 4: hidden_size is 190, .* 3 parts of 64"),
        (4, {"moe_intermediate_size": 90}, "--tp-size 4: moe_intermediate_size is 90, .* 3 parts of 32"),
        # Of the NextN module alone.
        (
            4,
            {**JOYAI_FLASH, "first_k_dense_replace": 0, "intermediate_size": 90},
            "--tp-size 4: intermediate_size is 90, .* 3 parts of 32",
        ),
    ],
)
def test_sizes_that_do_not_divide_are_refused(size: int, changes: dict[str, Any], said: str) -> None:
    config, _ = random_checkpoint(WIDE | changes, seed=1)
    ranks = SharedRanks(0, size, Memory(), size, 16)
    with pytest.raises(ValueError, match=said):
        NativeModel(ModelConfig.from_dict(config), 1, 1, ranks=ranks)
