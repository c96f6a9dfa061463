"""nextn inspect: which model, and what is no model."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.checkpoints import gqa_config, random_tensors, write_checkpoint

from nextn.cli import main
from nextn.families.config import ModelConfig
from nextn.models.names import expected_tensors


@pytest.mark.parametrize("words", [[], ["nextn-tiny"], ["--model", "nextn-tiny"]])
def test_the_model(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", *words]) == 0
    assert capsys.readouterr().out.startswith("model               nextn-tiny\n")


def test_two_models(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "a", "--model", "b"]) == 2
    said = "nextn inspect: error: the model is named twice: a, and --model b; leave one out\n"
    assert capsys.readouterr().err == said
    assert main(["serve", "--port", "1", "--model-path", "b", "a"]) == 2
    assert "named twice: a, and --model-path b" in capsys.readouterr().err


def test_a_name_on_the_hub(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "deepseek-ai/DeepSeek-V3"]) == 2
    said = capsys.readouterr().err
    assert "deepseek-ai/DeepSeek-V3: there is no such folder" in said
    assert "hf download deepseek-ai/DeepSeek-V3 --local-dir DeepSeek-V3\n" in said
    assert main(["inspect", "/no/such"]) == 2
    assert "hf download" not in capsys.readouterr().err


def test_a_draft_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(tmp_path / "draft")
    assert main(["export-mtp", "--input-dir", "nextn-tiny", "--output-dir", folder]) == 0
    assert main(["inspect", folder]) == 2
    said = capsys.readouterr().err
    assert "this folder holds an MTP layer without its model" in said
    assert "--speculative-draft-model-path" in said


def test_a_checkpoint_with_grouped_queries(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = gqa_config("MiMoForCausalLM")
    write_checkpoint(tmp_path, config, random_tensors(expected_tensors(ModelConfig.from_dict(config), 1)))
    assert main(["inspect", "--model-path", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    for line in (
        r"architecture +MiMoForCausalLM",
        r"hidden size, heads +48, 6 \(2 key-value heads\)",
        r"NextN \(MTP\) layers +1, ",
        r"KV cache a token +96 values \+ 32 for drafting",
    ):
        assert re.search(line, out), line
