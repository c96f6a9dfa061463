"""With grouped-query attention, too, the text does not depend on how it was computed: random GLM and MiMo
checkpoints on the native kernels, with drafts of every kind, chunks, caches, retractions and ranks."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from parity.engine_steps import make_engine
from parity.oracle import random_checkpoint
from support.checkpoints import write_checkpoint
from support.native_kernels import built_levels

from nextn.engine.engine import Engine
from nextn.request import Request, SamplingParams

pytestmark = pytest.mark.skipif(not built_levels(), reason="no native kernels")

NATIVE = {"kernel_backend": "cpu", "dtype": "auto"}
TREE = {"speculative_eagle_topk": 2, "speculative_num_draft_tokens": 6}
WAYS: dict[str, dict[str, Any]] = {
    "off": {"num_drafts": 0},
    "off, whole prompts": {"num_drafts": 0, "chunked_prefill_size": 512, "disable_radix_cache": True},
    "2 drafts": {"num_drafts": 2},
    "2 drafts, ahead": {"num_drafts": 2, "overlap_schedule": "on"},
    "2 drafts, int8 drafter": {"num_drafts": 2, "speculative_draft_model_quantization": "w8a16"},
    "tree": {"num_drafts": 3, **TREE},
    "tree, retracted": {"num_drafts": 3, **TREE, "kv_cache_tokens": 400},
    "n-grams": {"num_drafts": 2, "speculative_algorithm": "NGRAM"},
    "2 ranks": {"num_drafts": 2, "tp_size": 2},
}
WIDE = {"hidden_size": 128, "intermediate_size": 128, "moe_intermediate_size": 64, "vocab_size": 150}
SHAPES = {"Glm4MoeForCausalLM": {}, "MiMoForCausalLM": {"num_attention_heads": 4, "num_key_value_heads": 1}}


def texts(engine: Engine) -> tuple[dict[str, list[int]], int]:
    """(rid -> tokens, drafts that held) of greedy and seeded requests, all at once; prompts repeat
    themselves, so that n-grams are found, and one goes over a block of keys."""
    rng = random.Random(0)
    found: dict[str, list[int]] = {}
    for i, length in enumerate((3, 30, 250)):
        part = rng.choices(range(150), k=5)
        prompt = (part * length)[:length]
        for temperature in (0.0, 1.0):
            params = SamplingParams(max_tokens=24, temperature=temperature, seed=i, ignore_eos=True)
            rid = f"{i} {temperature}"
            found[rid] = []
            engine.add(Request(rid, list(prompt), params))
    held = 0
    while engine.has_work():
        for out in engine.step():
            found[out.rid] += out.tokens
            held += sum(out.spec.accepted) if out.finish_reason is not None and out.spec is not None else 0
    return found, held


@pytest.mark.parametrize("architecture", SHAPES)
def test_every_way_gives_one_text(architecture: str, tmp_path: Path) -> None:
    sizes = {"max_position_embeddings": 512, "num_hidden_layers": 2, **WIDE, **SHAPES[architecture]}
    folder = write_checkpoint(tmp_path, *random_checkpoint(sizes, 3, architecture))
    want = None
    for name, options in WAYS.items():
        if "tp_size" in options and architecture != "Glm4MoeForCausalLM":
            continue  # processes take seconds to start; parity/test_native_gqa.py has ranks of all families
        engine = make_engine(folder, **{**NATIVE, **options})
        try:
            assert engine.info.kernels == "cpu"
            found, held = texts(engine)
        finally:
            getattr(engine._executor, "close", lambda: None)()
        want = want or found
        assert found == want, name
        assert (held > 0) == (options["num_drafts"] > 0), name
