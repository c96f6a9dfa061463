"""Drafts and their acceptance, step by step, are those of transformers' own MTP (`generate(use_mtp=True)`).

It drafts as many tokens as a checkpoint has modules, for the classes of DeepSeek-V3 and GLM-4.5. The rest is
compared with a reference of ours (test_acceptance.py).
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from parity.engine_steps import make_engine, run
from parity.oracle import TINY, load_oracle, more_layers, random_checkpoint, tiny_prompts
from support.checkpoints import write_checkpoint

from nextn.engine.engine import Engine
from nextn.request import SamplingParams

generation = pytest.importorskip("transformers.generation.utils")
if not hasattr(generation, "MTPCandidateGenerator"):
    pytest.skip("this transformers has no MTP", allow_module_level=True)

NEW = 24  # tokens of each text


class Drafted(NamedTuple):
    """committed: tokens before it."""

    committed: int
    drafts: tuple[int, ...]


def theirs(
    model: Any, layers: int, prompt: list[int], monkeypatch: pytest.MonkeyPatch
) -> tuple[list[int], list[Drafted]]:
    """A greedy text, and what was drafted for it."""
    found: list[Drafted] = []

    class Recorded(generation.MTPCandidateGenerator):  # type: ignore[misc,name-defined]
        def get_candidates(self, input_ids: torch.Tensor, *args: Any, **options: Any) -> Any:
            candidates, logits = super().get_candidates(input_ids, *args, **options)
            committed = input_ids.shape[1]
            if candidates.shape[1] > committed:
                found.append(Drafted(committed, tuple(candidates[0, committed:].tolist())))
            return candidates, logits

    monkeypatch.setattr(generation, "MTPCandidateGenerator", Recorded)
    first = model.config.num_hidden_layers  # the class knows the layer's number in the published checkpoints
    model._keys_to_ignore_on_load_unexpected = [rf"model\.layers\.{first + k}\..*" for k in range(layers)]
    model.generation_config.eos_token_id = None
    text = model.generate(torch.tensor([prompt]), max_new_tokens=NEW, do_sample=False, use_mtp=True)
    return text[0].tolist(), found


def ours(engine: Engine, prompt: list[int]) -> tuple[list[int], list[Drafted]]:
    params = SamplingParams(max_tokens=NEW, temperature=0.0, ignore_eos=True)
    trace = run(engine, {"0": (prompt, params)})["0"]
    found, committed = [], len(prompt)
    for step in trace.steps:
        if step.drafts:
            found.append(Drafted(committed, step.drafts))
        committed += len(step.tokens)
    return trace.tokens, found


def folder_of(kind: str, layers: int, folder: Path) -> tuple[Path, list[list[int]]]:
    """A checkpoint, and prompts."""
    if kind == "tiny":
        return (TINY if layers == 1 else more_layers(TINY, folder, layers)), tiny_prompts()
    config, tensors = random_checkpoint({"num_nextn_predict_layers": layers}, 3, kind)
    rng = random.Random(0)
    prompts = [rng.choices(range(config["vocab_size"]), k=k) for k in (2, 6, 37)]
    return write_checkpoint(folder, config, tensors), prompts


@pytest.mark.parametrize(
    ("kind", "layers"), [("tiny", 2), ("DeepseekV3ForCausalLM", 1), ("Glm4MoeForCausalLM", 1)]
)
def test_drafts_are_those_of_transformers(
    kind: str, layers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, prompts = folder_of(kind, layers, tmp_path / "model")
    held = 0
    model, engine = load_oracle(folder), make_engine(folder, layers)
    for prompt in prompts:
        text, drafted = theirs(model, layers, prompt, monkeypatch)
        own_text, own_drafted = ours(engine, prompt)
        assert own_text == text
        # Where there is room for fewer, each drafts as many as it likes.
        room = len(prompt) + NEW - 1 - layers
        want = [one for one in drafted if one.committed <= room]
        assert [one for one in own_drafted if one.committed <= room] == want
        assert want
        held += sum(text[one.committed] == one.drafts[0] for one in want)
    assert held > 10 or kind != "tiny"
