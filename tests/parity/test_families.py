"""Families beside DeepSeek-V3, in engines: drafts and acceptance, ways of drafting, folders of a module.

What is general is tested on DeepSeek-V3; here is what these families' NextN modules do otherwise.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from parity.engine_steps import Trace, make_engine, run
from parity.nextn_reference import NextNReference
from parity.oracle import DEEPSEEK_V2, GLM_FLASH, JOYAI_FLASH, random_checkpoint
from safetensors.torch import save_file
from support import two_ways
from support.checkpoints import quantize_tensors, write_checkpoint
from support.draft_folders import fp8_config, write_sglang, write_target, write_xllm
from support.native_kernels import built_levels

from nextn.families.files import read_json
from nextn.models.export import export_mtp
from nextn.request import SamplingParams
from nextn.speculative.mtp import MTPDrafter

FAMILIES: dict[str, dict[str, Any]] = {"GLM-4.7-Flash": GLM_FLASH, "JoyAI-LLM-Flash": JOYAI_FLASH}
FAMILIES["DeepSeek-V2"] = DEEPSEEK_V2  # as if it had a module
GREEDY = SamplingParams(max_tokens=16, temperature=0.0, ignore_eos=True)
PARAMS = {"greedy": GREEDY, "seeded": GREEDY.replace(temperature=1.0, seed=5)}
NATIVE: dict[str, Any] = {"dtype": "auto", "kernel_backend": "cpu"}


@dataclass(frozen=True)
class Setup:
    folder: Path
    config: dict[str, Any]
    tensors: dict[str, Any]

    @property
    def prompts(self) -> list[list[int]]:
        rng = random.Random(0)
        return [rng.choices(range(2, self.config["vocab_size"]), k=k) for k in (1, 6, 37)]

    def traces(self, folder: Path, draft: Path | None = None, **options: Any) -> dict[str, Trace]:
        path = str(draft) if draft else None
        engine = make_engine(folder, 3, speculative_draft_model_path=path, **options)
        work = {f"{i}": (p, PARAMS["seeded" if i % 2 else "greedy"]) for i, p in enumerate(self.prompts)}
        return run(engine, work)


@pytest.fixture(scope="module", params=FAMILIES)
def setup(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Setup:
    config, tensors = random_checkpoint(FAMILIES[request.param], seed=3)
    return Setup(write_checkpoint(tmp_path_factory.mktemp("family"), config, tensors), config, tensors)


def test_drafts_and_acceptance_are_the_reference_s(setup: Setup) -> None:
    reference = NextNReference(setup.folder)
    for trace in setup.traces(setup.folder).values():
        assert trace.steps == reference.generate(trace.prompt, 3, trace.params)


def test_the_reference_can_tell_a_module_from_deepseek_v3_s(setup: Setup) -> None:
    """Or what is special of it would not be tested above."""
    reference = NextNReference(setup.folder)
    if not reference.first_masked:
        dense = not any("experts" in name for name in setup.tensors if name.startswith("model.layers.3."))
        assert dense == (setup.config["model_type"] == "joyai_llm_flash")
        return
    prompt = setup.prompts[1]
    drafts = reference.drafts(prompt, 3, GREEDY)
    reference.first_masked = False
    reference._drafts.clear()
    assert reference.drafts(prompt, 3, GREEDY) != drafts


def test_native_ways_of_drafting_agree(setup: Setup) -> None:
    """A step in one call, chains in one call, and a call for each depth; cache entries of the first two."""
    built_levels()
    engine, both = two_ways.two_ways(3, model_path=str(setup.folder))
    work = {f"{i}{n}": (p, params) for i, p in enumerate(setup.prompts) for n, params in PARAMS.items()}
    two_ways.run(engine, work)
    assert both.plain > 5
    assert both.general == 0
    found = []
    for plain in (False, True):
        made = make_engine(setup.folder, 3, **NATIVE)
        if plain:
            made._executor.plain = None
            drafter = made._executor.drafter
            assert drafter.chain_drafter is not None
            made._executor.drafter = MTPDrafter(drafter.model, drafter.pool, drafter.shape, plain=True)
        found.append({rid: trace.steps for rid, trace in run(made, work).items()})
    assert found[0] == found[1]
    assert any(step.drafts for steps in found[0].values() for step in steps)


@pytest.mark.parametrize("kernels", ["reference", "native"])
def test_a_module_in_a_folder_of_its_own(setup: Setup, tmp_path: Path, kernels: str) -> None:
    if kernels == "reference" and setup.config["model_type"] != "glm4_moe_lite":
        pytest.skip("plain torch is slow, and whose tensors those are is as on the others")
    options = NATIVE if kernels == "native" else {}
    target = write_target(tmp_path / "target", setup.config, setup.tensors)
    export_mtp(setup.folder, tmp_path / "exported")
    architecture = read_json(tmp_path / "exported" / "config.json")["architectures"]
    assert architecture[0].removesuffix("ForCausalLMNextN") in ("Glm4MoeLite", "JoyAILLMFlash", "DeepseekV3")
    folders = [tmp_path / "exported"]
    if kernels == "native":  # the fast ones
        folders.append(write_sglang(tmp_path / "sglang", setup.config, setup.tensors))
        folders += write_xllm(tmp_path / "xllm", setup.config, setup.tensors), setup.folder
    want = setup.traces(setup.folder, **options)
    for folder in folders:
        got = setup.traces(target, folder, **options)
        assert {rid: t.steps for rid, t in got.items()} == {rid: t.steps for rid, t in want.items()}, folder


def test_a_module_in_a_file_that_no_index_names(setup: Setup, tmp_path: Path) -> None:
    """mtp.safetensors beside the target's files; and a folder that holds nothing else."""
    module = {name: t for name, t in setup.tensors.items() if name.startswith("model.layers.3.")}
    beside, alone = write_target(tmp_path / "beside", setup.config, setup.tensors), tmp_path / "alone"
    save_file(module, beside / "mtp.safetensors")
    alone.mkdir()
    (alone / "config.json").write_text(json.dumps(setup.config))
    save_file(module, alone / "mtp-1-of-1.safetensors")
    want = {rid: t.steps for rid, t in setup.traces(setup.folder, **NATIVE).items()}
    target = write_target(tmp_path / "target", setup.config, setup.tensors)
    for got in (setup.traces(beside, **NATIVE), setup.traces(target, alone, **NATIVE)):
        assert {rid: t.steps for rid, t in got.items()} == want


def test_fp8_blocks(setup: Setup, tmp_path: Path) -> None:
    """Both kernels start on them and write; the native ones keep the blocks."""
    tensors = quantize_tensors(setup.tensors, 16)
    folder = write_checkpoint(tmp_path, fp8_config(setup.config, 16), tensors)
    for options in ({}, NATIVE):
        quantized = replace(setup, folder=folder).traces(folder, **options)
        assert all(len(t.tokens) == len(t.prompt) + GREEDY.max_tokens for t in quantized.values())
    weights = [make_engine(f, 3, **NATIVE).startup["weight_bytes"] for f in (setup.folder, folder)]
    assert weights[1] < 0.8 * weights[0]
