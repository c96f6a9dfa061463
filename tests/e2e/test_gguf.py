"""A server on a GGUF file, and what commands say of files that are none."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from support.gguf_models import as_gguf
from support.native_kernels import built_levels
from support.server_process import ServerProcess

from nextn import LLM, SamplingParams
from nextn.cli import main
from nextn.config import EMBEDDED, model_folder

pytestmark = pytest.mark.skipif(not built_levels(), reason="no native kernels")
PROMPT = "def fibonacci(n):\n"
OPTIONS = ("--port", "0", "--threads", "1", "--kv-cache-tokens", "2048", "--step-cost-cache", "off")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("gguf") / "tiny-Q8_0.gguf"
    return as_gguf(model_folder(EMBEDDED), out, "q8_0", split=60)


def test_a_server_on_a_file_in_parts(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    llm = LLM(str(file), threads=1, kv_cache_tokens=2048, speculative_num_steps=0)
    (want,) = llm.generate([PROMPT], SamplingParams(max_tokens=32, temperature=0))
    command = ["-m", "nextn", "serve", str(file), *OPTIONS, "--tp-size", "2", "--speculative-num-steps", "2"]
    with ServerProcess(command) as server:
        server.wait_ready()
        assert server.model == "tiny-Q8_0"
        body = {"model": server.model, "prompt": PROMPT, "max_tokens": 32, "temperature": 0}
        answer = httpx.post(server.url + "/v1/completions", json=body, timeout=60).json()
        assert answer["choices"][0]["text"] == want.text
        chat = {"messages": [{"role": "user", "content": "import os"}], "max_tokens": 8}
        chat = httpx.post(server.url + "/v1/chat/completions", json=chat, timeout=60).json()
        assert chat["choices"][0]["message"]["content"]
        info = httpx.get(server.url + "/get_model_info").json()
        assert Path(info["tokenizer_path"]).name.startswith("tiny-Q8_0-")
        assert "Q8_0 computed from as stored" in "".join(server.stderr)
    assert main(["inspect", str(file)]) == 0
    assert "stored as           Q8_0" in capfd.readouterr().out


def test_commands_name_the_file_that_is_none(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "x.gguf"
    file.write_text("no model")
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("x")
    for words in (
        ["serve", "--port", "0", "--model-path", str(file)],
        ["inspect", str(file)],
        ["generate", "--model-path", str(file), PROMPT],
        ["bench", "offline", "--model-path", str(file)],
        ["serve", "--port", "0", "--speculative-draft-model-path", str(file), "--speculative-num-steps", "1"],
        ["token-map", "--model-path", str(file), "--output", str(tmp_path / "map"), str(corpus)],
        ["export-mtp", "--input-dir", str(file), "--output-dir", str(tmp_path / "out")],
    ):
        assert main(words) == (1 if words[0] == "serve" else 2), words
        said = capfd.readouterr().err
        assert f"error: {file}: it is not a GGUF file: it begins with b'no m'" in said, words
        assert "Traceback" not in said


def test_export_mtp_from_a_file(file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Of plain values it is as from any checkpoint; few bits it does not write."""
    words = ["export-mtp", "--output-dir", str(tmp_path / "out"), "--input-dir"]
    assert main([*words, str(file)]) == 2
    said = capfd.readouterr().err
    assert "-of-00004.gguf: model.layers.12." in said
    assert "Q8_0; nextn export-mtp copies plain and FP8 tensors only" in said
    assert "--speculative-draft-model-path" in said
    plain = as_gguf(model_folder(EMBEDDED), tmp_path / "plain.gguf", "bf16")
    assert main([*words, str(plain)]) == 0
    options = {"threads": 1, "kv_cache_tokens": 2048, "speculative_num_steps": 2}
    params = SamplingParams(max_tokens=24, temperature=0)
    (want,) = LLM(EMBEDDED, **options).generate([PROMPT], params)
    (found,) = LLM(speculative_draft_model_path=str(tmp_path / "out"), **options).generate([PROMPT], params)
    assert (found.token_ids, found.drafted) == (want.token_ids, want.drafted)
