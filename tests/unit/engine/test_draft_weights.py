"""A coarser or smaller drafter guesses a little worse; what it never does is change a text."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
import torch

from nextn.bench.prompts import all_heldout_prompts
from nextn.config import EMBEDDED, EngineConfig, model_folder
from nextn.engine.kernels import choose_kernels
from nextn.engine.rank import make_runner
from nextn.llm import LLM
from nextn.models.native import NativeModel
from nextn.ops.cpu.interface import INT8
from nextn.request import SamplingParams
from nextn.tokenizer import Tokenizer

PROMPTS = all_heldout_prompts()[:4]
GREEDY, SEEDED = SamplingParams(max_tokens=48, temperature=0), SamplingParams(max_tokens=48, seed=3)
NATIVE = choose_kernels(EngineConfig(), torch.device("cpu")) == "cpu"
needs_kernels = pytest.mark.skipif(not NATIVE, reason="no native kernels here")


def texts(kernels: str = "cpu", **options: object) -> tuple[list[list[int]], float]:
    """(tokens of every prompt, accept length), greedy and seeded; of one short text on plain torch, which is
    slow."""
    llm = LLM(threads=1, kernel_backend=kernels, kv_cache_tokens=2048, speculative_num_steps=3, **options)
    if kernels == "cpu":
        done = [c for p in (GREEDY, SEEDED) for c in llm.generate(PROMPTS, p)]
    else:
        done = llm.generate(PROMPTS[:1], SEEDED.replace(max_tokens=12))
    steps = sum(c.spec.verify_steps for c in done)
    return [c.token_ids for c in done], sum(c.spec.committed for c in done) / steps


@cache
def of_the_whole(kernels: str = "cpu") -> tuple[list[list[int]], float]:
    """What the drafter as it is gives."""
    return texts(kernels)


@needs_kernels
def test_an_int8_drafter() -> None:
    plain, as_good = of_the_whole()
    found, length = texts(speculative_draft_model_quantization="w8a16")
    assert found == plain
    assert length == pytest.approx(as_good, rel=0.05)


@needs_kernels
def test_the_drafter_alone_is_in_int8() -> None:
    runner = make_runner(EngineConfig(threads=1, speculative_draft_model_quantization="w8a16"))
    model = runner.model
    assert isinstance(model, NativeModel)
    weights, nextn = model.weights, model.config.num_hidden_layers
    drafters = weights.layers[nextn]
    for weight in (
        weights.nextn[0].eh_proj,
        weights.draft_head,
        drafters.down,
        drafters.out,
        drafters.mlp.gate_up,
    ):
        assert weight.kind == INT8
    for weight in (weights.head, *(layer.down for layer in weights.layers[:nextn])):
        assert weight.kind != INT8


@pytest.mark.parametrize("kernels", ["reference", pytest.param("cpu", marks=needs_kernels)])
def test_a_draft_vocabulary(tmp_path: Path, kernels: str) -> None:
    """Of the tokens that the texts are made of: as good as the whole. Of one token: no draft holds."""
    tokenizer = Tokenizer.from_folder(model_folder(EMBEDDED))
    whole, length = of_the_whole(kernels)
    wanted = sorted({t for ids in whole for t in ids} | set(tokenizer.encode("".join(PROMPTS))))
    for ids, least, most in ((wanted, 0.97 * length, 2 * length), ([wanted[0]], 1.0, 1.2)):
        path = tmp_path / "map.json"
        path.write_text(json.dumps(ids))
        found, got = texts(kernels, speculative_token_map=str(path))
        assert found == whole
        assert least <= got <= most


@needs_kernels
def test_a_draft_vocabulary_in_the_draft_folder(tmp_path: Path) -> None:
    """It needs no option, and an option comes first."""
    for file in model_folder(EMBEDDED).iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "token_map.json").write_text("[7]")
    whole, length = of_the_whole()
    found, got = texts(speculative_draft_model_path=str(tmp_path))
    assert found == whole
    assert got < 1.2
    other = tmp_path / "other.json"
    other.write_text(json.dumps(list(range(4096))))
    found, got = texts(speculative_draft_model_path=str(tmp_path), speculative_token_map=str(other))
    assert found == whole
    assert got == length


def test_refusals() -> None:
    with pytest.raises(ValueError, match=r"--speculative-draft-model-quantization w8a16 needs the native"):
        make_runner(EngineConfig(kernel_backend="reference", speculative_draft_model_quantization="w8a16"))
    with pytest.raises(ValueError, match=r"--speculative-token-map nowhere.json cannot be read"):
        make_runner(EngineConfig(speculative_token_map="nowhere.json"))
