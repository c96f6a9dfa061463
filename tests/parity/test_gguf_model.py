"""Models from GGUF files: those of plain values are the checkpoint itself, to the token and the draft; those
of few bits compute what plain torch computes from the same weights widened, and their texts are exact."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from parity.test_native_model import BOUND, OPEN, apart
from parity.test_native_ranks import of_ranks
from support.gguf_models import WHOLE_BLOCKS, as_gguf, random_folder
from support.native_kernels import built_levels
from support.native_model import CPU, feed, in_chunks, whole

from nextn import LLM, SamplingParams
from nextn.bench.prompts import heldout_prompts
from nextn.config import EMBEDDED, model_folder
from nextn.families.config import ModelConfig
from nextn.models.export import export_mtp
from nextn.models.loader import load_checkpoint, stored_formats
from nextn.models.names import expected_tensors
from nextn.models.native import NativeModel
from nextn.models.torch_model import TorchModel
from nextn.ops.cpu import coded
from nextn.ops.cpu.library import machine_level
from nextn.ops.reference import Reference

pytestmark = pytest.mark.skipif(not built_levels(), reason="no native kernels")
# Bits of a weight, of small models: kv_b_proj is in int8 and the router in f32.
LARGEST = {"q8_0": 9.5, "q4_0": 6.5, "q4_k": 6.5, "q6_k": 8, "q5_1": 8}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A random model's GGUF file of a type."""
    folder, _, _ = random_folder(tmp_path_factory.mktemp("random"), {**WHOLE_BLOCKS, **OPEN}, seed=3)
    return lambda kind: as_gguf(folder, folder / f"{kind}.gguf", kind)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """The embedded model's."""
    out = tmp_path_factory.mktemp("tiny")
    made: dict[str, Path] = {}

    def make(kind: str) -> str:
        if kind not in made:
            made[kind] = as_gguf(model_folder(EMBEDDED), out / f"{kind}.gguf", kind)
        return str(made[kind])

    return make


def native(path: Path, **options: Any) -> NativeModel:
    folder = model_folder(str(path))
    cfg = ModelConfig.from_folder(folder)
    model = NativeModel(cfg, 1, quantize=None, stored=stored_formats(folder, None), **options)
    weights = model.weights
    load_checkpoint(
        folder, expected_tensors(cfg, 1), model.place, as_stored=weights.as_stored, rows=weights.rows
    )
    return model


def reference(path: Path) -> TorchModel:
    folder = model_folder(str(path))
    cfg = ModelConfig.from_folder(folder)
    model = TorchModel(cfg, Reference(), torch.float32, CPU, 1)
    targets = model.targets()
    load_checkpoint(
        folder, expected_tensors(cfg, 1), lambda name, t: targets[name].copy_(t), dtype=torch.float32
    )
    return model


def tokens(n: int) -> list[int]:
    return random.Random(n).choices(range(WHOLE_BLOCKS["vocab_size"]), k=n)


@pytest.mark.parametrize("kind", LARGEST)
def test_blocks_against_widened_weights(file: Callable[[str], Path], kind: str) -> None:
    """Hidden states, logits and the NextN module's output; bits however the prompt is cut. Matrices of a type
    without kernels are widened to bf16."""
    path, prompt = file(kind), tokens(60)
    model = native(path, threads=1)
    got, want = feed(model, [prompt], [[60]])[0], feed(reference(path), [prompt], [[60]])[0]
    for a, b in zip(got, want, strict=True):
        assert apart(a, b) < BOUND
        assert (a - b).abs().max() < 10 * BOUND * b.square().mean().sqrt()
    again = feed(model, [prompt], in_chunks([prompt], 7, 0))[0]
    assert all(torch.equal(a, b) for a, b in zip(again, got, strict=True))
    few = kind.upper() in coded.KINDS
    expert = "model.layers.1.mlp.experts.0.down_proj.weight"
    assert (expert in model.weights.as_stored) == few
    values = sum(w.shape[0] * w.shape[1] * w.members for w in model.weights.packed)
    per_weight = 8 * sum(w.bytes for w in model.weights.packed) / values
    assert per_weight < (LARGEST[kind] if few else 17)


@pytest.mark.parametrize("kind", ["q8_0", "q4_k"])
def test_bits_on_two_ranks(file: Callable[[str], Path], kind: str) -> None:
    path, prompts = file(kind), [tokens(n) for n in (1, 23, 60)]
    want = feed(native(path, threads=1), prompts, whole(prompts))

    def found(model: NativeModel) -> Any:
        return feed(model, prompts, whole(prompts))

    for got in of_ranks(lambda **options: native(path, **options), 2, found):
        for mine, theirs in zip(got, want, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


def texts(path: str, tokens: int, **options: Any) -> list[Any]:
    llm = LLM(path, threads=1, step_cost_cache="off", kv_cache_tokens=2048, **options)
    done = llm.generate(heldout_prompts(3), SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True))
    return [(c.token_ids, c.drafted, c.spec) for c in done]


@pytest.mark.parametrize(
    ("kind", "kernels", "count"), [("bf16", "cpu", 24), ("f32", "cpu", 24), ("bf16", "reference", 8)]
)
def test_plain_values_are_the_checkpoint_itself(
    tiny: Callable[[str], str], kind: str, kernels: str, count: int
) -> None:
    """Texts, which of their tokens were drafted, and accept lengths."""
    options = {"kernel_backend": kernels, "speculative_num_steps": 2}
    want = texts(EMBEDDED, count, **options)
    assert texts(tiny(kind), count, **options) == want
    assert sum(spec.accept_length for *_, spec in want) / len(want) > 1.5


def test_a_draft_folder_for_a_file_without_nextn_layers(tmp_path: Path) -> None:
    """As llama.cpp converts DeepSeek's models. The folder's config is the checkpoint's own."""
    file = as_gguf(model_folder(EMBEDDED), tmp_path / "plain.gguf", "bf16", nextn=False)
    export_mtp(model_folder(EMBEDDED), tmp_path / "drafter")
    want = texts(EMBEDDED, 24, speculative_num_steps=2)
    options = {"speculative_num_steps": 2, "speculative_draft_model_path": str(tmp_path / "drafter")}
    assert texts(str(file), 24, **options) == want
    with pytest.raises(ValueError, match="has no NextN layer to draft with"):
        LLM(str(file), speculative_num_steps=2)


@pytest.mark.parametrize("inputs", ["bf16", "int8"])
def test_drafts_change_no_text(tiny: Callable[[str], str], inputs: str) -> None:
    """Of 4 bits; the draft folder's has 8."""
    if inputs == "int8" and not coded.by_bytes(machine_level()[0]):
        pytest.skip("no dot products of bytes here")
    path = tiny("q4_0")
    want = [ids for ids, *_ in texts(path, 24, speculative_num_steps=0, gguf_activations=inputs)]
    for options in (
        {"speculative_num_steps": 3},
        {"speculative_num_steps": 2, "speculative_eagle_topk": 3},
        {"speculative_num_steps": 2, "speculative_draft_model_path": tiny("q8_0")},
    ):
        found = texts(path, 24, **options, gguf_activations=inputs)
        assert [ids for ids, *_ in found] == want, options
        assert sum(spec.accept_length for *_, spec in found) / len(found) > 1.5, options
