"""nextn export-mtp, and a server that drafts with what it wrote."""

from __future__ import annotations

import shutil
from pathlib import Path

import httpx
import pytest
from safetensors.torch import load_file
from support.draft_folders import write_target
from support.server_process import ServerProcess

from nextn import LLM, SamplingParams
from nextn.cli import main
from nextn.config import EMBEDDED, model_folder
from nextn.families.files import read_json

OPTIONS = ("--port", "0", "--threads", "1", "--kv-cache-tokens", "2048", "--speculative-num-steps", "3")
PROMPTS = ["def main(argv):\n", "import os\nimport sys\n\n\nclass "]


def serve(model: str | Path, *options: str) -> ServerProcess:
    return ServerProcess(["-m", "nextn", "serve", "--model-path", str(model), *OPTIONS, *options])


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """nextn-tiny without its NextN layer."""
    source = model_folder(EMBEDDED)
    folder = tmp_path_factory.mktemp("target")
    write_target(folder, read_json(source / "config.json"), load_file(source / "model.safetensors"))
    for file in source.glob("tokenizer*.json"):
        shutil.copyfile(file, folder / file.name)
    return folder


def test_same_texts_and_acceptance(target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of the whole model in this process, and of a server on the target with the exported layer."""
    out = tmp_path / "layer"
    assert main(["export-mtp", "--input-dir", EMBEDDED, "--output-dir", str(out)]) == 0
    assert capsys.readouterr() == (f"{out}: 1 NextN layer, 42 tensors, 2.4 MB\n", "")
    llm = LLM(EMBEDDED, threads=1, kv_cache_tokens=2048, speculative_num_steps=3)
    whole = llm.generate(PROMPTS, SamplingParams(max_tokens=48, temperature=0, ignore_eos=True))
    with serve(target, "--draft_model", str(out)) as apart:
        assert ["draft", "model", str(out)] in [line.split() for line in apart.stdout]
        body = {"prompt": PROMPTS, "max_tokens": 48, "temperature": 0, "ignore_eos": True}
        body["return_spec_tokens_details"] = True
        answer = httpx.post(apart.url + "/v1/completions", json=body, timeout=60).json()
    assert [choice["text"] for choice in answer["choices"]] == [found.text for found in whole]
    details, counted = answer["usage"]["spec_details"], llm.engine.stats().spec
    assert details["proposed"] == counted.proposed
    assert details["accepted"] == counted.accepted
    assert counted.accepted[-1] > 0
