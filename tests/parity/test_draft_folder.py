"""A target without its NextN layer, and the layer in a folder of its own, draft as the whole checkpoint does.

Every step's drafts and tokens are compared, on both kernels. Where the folder holds other bits than the
checkpoint (FP8 blocks as bf16), only the text has to be the same.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from parity.engine_steps import Trace, make_engine, run
from parity.oracle import random_checkpoint
from safetensors.torch import load_file
from support.checkpoints import quantize_tensors, write_checkpoint
from support.draft_folders import fp8_config, with_copies, write_sglang, write_target, write_xllm
from support.native_kernels import built_levels

from nextn.config import EMBEDDED, model_folder
from nextn.families.files import read_json
from nextn.models.export import export_mtp
from nextn.request import SamplingParams

KERNELS: dict[str, dict[str, Any]] = {
    "reference": {},
    "native": {"dtype": "auto", "kernel_backend": "cpu"},
}


@dataclass
class Setup:
    whole: Path
    target: Path
    drafts: dict[str, Path]
    prompts: list[list[int]]

    def traces(self, kernels: str, folder: Path, draft: Path | None = None) -> dict[str, Trace]:
        if kernels == "native":
            built_levels()  # skips where there are none
        path = str(draft) if draft else None
        engine = make_engine(folder, 3, speculative_draft_model_path=path, **KERNELS[kernels])
        params = SamplingParams(max_tokens=40, temperature=1.0, seed=5, ignore_eos=True)
        greedy = params.replace(temperature=0.0)
        work = {f"{i}": (p, params if i % 2 else greedy) for i, p in enumerate(self.prompts)}
        return run(engine, work)


def setup(folder: Path, config: dict[str, Any], tensors: dict[str, Any]) -> Setup:
    whole = write_checkpoint(folder / "whole", config, tensors, shards=3)
    drafts = {
        "SGLang": write_sglang(folder / "sglang", config, tensors),
        "xLLM": write_xllm(folder / "xllm", config, tensors),
        "whole checkpoint": whole,
    }
    ways: dict[str, dict[str, Any]] = {
        "export-mtp": {}, "dequantized": {"dequantize": True}, "with shared": {"with_shared": True}
    }  # fmt: skip
    for name, options in ways.items():
        drafts[name] = folder / name
        export_mtp(whole, drafts[name], **options)
    rng = random.Random(1)
    prompts = [rng.choices(range(2, config["vocab_size"]), k=k) for k in (5, 21, 37, 9)]
    return Setup(whole, write_target(folder / "target", config, tensors), drafts, prompts)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Setup:
    source = model_folder(EMBEDDED)
    tensors = load_file(source / "model.safetensors")
    return setup(tmp_path_factory.mktemp("tiny"), read_json(source / "config.json"), tensors)


@pytest.fixture(scope="module")
def fp8(tmp_path_factory: pytest.TempPathFactory) -> Setup:
    config, plain = random_checkpoint({}, seed=3)
    tensors = quantize_tensors(with_copies(config, plain), 16)
    return setup(tmp_path_factory.mktemp("fp8"), fp8_config(config, 16), tensors)


AS_BF16 = ("xLLM", "dequantized")  # what a draft folder of FP8 blocks holds otherwise


@pytest.mark.parametrize(
    ("model", "kernels", "names"),
    [
        ("fp8", "reference", ("SGLang", "dequantized")),  # slow; whose tensors those are is as on the others
        ("fp8", "native", None),
        ("tiny", "native", None),
    ],
    ids=["fp8-reference", "fp8-native", "tiny-native"],
)
def test_same_drafts_and_acceptance(
    model: str, kernels: str, names: tuple[str, ...] | None, request: pytest.FixtureRequest
) -> None:
    """names: the draft folders, all of them if None."""
    s: Setup = request.getfixturevalue(model)
    want = s.traces(kernels, s.whole)
    accepted = sum(step.accepted for trace in want.values() for step in trace.steps)
    assert accepted > 5
    for name in names or s.drafts:
        got = s.traces(kernels, s.target, s.drafts[name])
        for rid, trace in want.items():
            assert got[rid].tokens == trace.tokens, name
            if model == "tiny" or name not in AS_BF16:
                assert got[rid].steps == trace.steps, name


def test_fp8_blocks_stay_blocks(fp8: Setup) -> None:
    built_levels()

    def weight_bytes(folder: Path, draft: Path | None) -> object:
        path = str(draft) if draft else None
        engine = make_engine(folder, 1, speculative_draft_model_path=path, **KERNELS["native"])
        return engine.startup["weight_bytes"]

    whole = weight_bytes(fp8.whole, None)
    for name, draft in fp8.drafts.items():
        assert (weight_bytes(fp8.target, draft) == whole) != (name in AS_BF16), name


def test_a_target_whose_config_knows_of_no_layer(tiny: Setup, tmp_path: Path) -> None:
    config = {**read_json(tiny.target / "config.json"), "num_nextn_predict_layers": 0}
    target = write_checkpoint(tmp_path, config, load_file(tiny.target / "model.safetensors"))
    want = tiny.traces("native", tiny.whole)
    got = tiny.traces("native", target, tiny.drafts["export-mtp"])
    assert {rid: t.steps for rid, t in got.items()} == {rid: t.steps for rid, t in want.items()}
    assert make_engine(target, 0, **KERNELS["native"]).speculation.num_steps == 0


def test_another_layer_s_folder_is_what_drafts(tiny: Setup, tmp_path: Path) -> None:
    """The whole checkpoint as the target, and a draft folder of other weights: the folder's are used."""
    config = read_json(tiny.whole / "config.json")
    tensors = load_file(model_folder(EMBEDDED) / "model.safetensors")
    tensors["model.layers.12.eh_proj.weight"] *= -1
    other = write_sglang(tmp_path / "other", config, tensors)
    want, got = tiny.traces("native", tiny.whole), tiny.traces("native", tiny.whole, other)
    assert {rid: t.tokens for rid, t in got.items()} == {rid: t.tokens for rid, t in want.items()}
    assert {rid: t.steps for rid, t in got.items()} != {rid: t.steps for rid, t in want.items()}


def test_options_that_do_not_go_together(fp8: Setup) -> None:
    draft = fp8.drafts["export-mtp"]
    with pytest.raises(ValueError, match=r"speculative-draft-model-path .*--load-format dummy"):
        make_engine(fp8.target, 2, speculative_draft_model_path=str(draft), load_format="dummy")
    with pytest.raises(ValueError, match=r"--model-path fake:0\.5 scripts its own drafts"):
        make_engine(Path("fake:0.5"), 2, speculative_draft_model_path=str(draft))
    with pytest.raises(ValueError, match=r"has no NextN layer .* use --speculative-draft-model-path, or"):
        make_engine(fp8.target, 2)
    off = make_engine(fp8.target, 0, speculative_draft_model_path="/nowhere")
    assert off.speculation.num_steps == 0
    assert "draft_model" not in off.startup
    on = make_engine(fp8.target, 2, speculative_draft_model_path=str(draft))
    assert on.startup["draft_model"] == str(draft)
