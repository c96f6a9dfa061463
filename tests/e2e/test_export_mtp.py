"""nextn export-mtp and a server that drafts with what it wrote, as people run them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from safetensors.torch import load_file
from support.draft_folders import write_target
from support.server_process import ServerProcess

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


@pytest.fixture(scope="module")
def servers(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ServerProcess]]:
    """The whole model, and the target with the exported layer."""
    out = tmp_path_factory.mktemp("export") / "layer"
    words = ["export-mtp", "--input-dir", EMBEDDED, "--output-dir", str(out)]
    done = subprocess.run([sys.executable, "-m", "nextn", *words], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{out}: 1 NextN layer, 42 tensors, 2.4 MB\n"
    with serve(EMBEDDED) as whole, serve(target, "--draft_model", str(out)) as apart:
        assert ["draft", "model", str(out)] in [line.split() for line in apart.stdout]
        yield [whole, apart]


def test_same_texts_and_acceptance(servers: list[ServerProcess]) -> None:
    texts, counts = [], []
    for server in servers:
        body = {"prompt": PROMPTS, "max_tokens": 48, "temperature": 0, "ignore_eos": True}
        answer = httpx.post(server.url + "/v1/completions", json=body, timeout=60).json()
        texts.append([choice["text"] for choice in answer["choices"]])
        metrics = server.metrics()
        counts.append({name: metrics[name] for name in metrics if "spec" in name and "total" in name})
    assert texts[0] == texts[1]
    assert counts[0] == counts[1]
    assert len(counts[0]) > 2
    assert all(count > 0 for count in counts[0].values())
