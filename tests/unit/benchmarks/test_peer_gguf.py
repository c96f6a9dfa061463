"""nextn and llama.cpp on one GGUF file: what each is given, and what is reported. The engines are fakes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

FACTS = {
    "vocab_size": 300, "bos": 0, "ends": [1], "context": 4096, "layers": 3,
    "nextn_layers": 1, "experts": 0, "experts_used": 0,
    "tensors": [["output.weight", "Q4_K", 43_200]],
}  # fmt: skip

SERVER = """#!{python}
import json, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

with open({argv!r}, "w") as out:
    json.dump(sys.argv[1:], out)

class Answers(BaseHTTPRequestHandler):
    def do_GET(self):
        self.reply({{"status": "ok"}})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert asked["ignore_eos"] and not asked["cache_prompt"] and asked["top_k"] == 1
        first = asked["prompt"][-1] + 1
        self.reply({{"tokens": list(range(first, first + asked["n_predict"])),
                     "timings": {{"draft_n": 4, "draft_n_accepted": 3}}}})

    def reply(self, answer):
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass

port = int(sys.argv[sys.argv.index("--port") + 1])
ThreadingHTTPServer(("127.0.0.1", port), Answers).serve_forever()
"""


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder as install.sh makes it, with a server that counts up."""
    home = tmp_path / "peers" / "llamacpp"
    server = home / "build" / "bin" / "llama-server"
    server.parent.mkdir(parents=True)
    server.write_text(SERVER.format(python=sys.executable, argv=str(tmp_path / "argv.json")))
    server.chmod(0o755)
    (home / "bin").mkdir()
    (home / "bin" / "python").symlink_to(sys.executable)
    (home / "llama_cpp_python-0.0.1.tar.gz").touch()
    return home.parent


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "model-Q4_K_M.gguf"
    found.write_bytes(b"GGUF")
    return found


@pytest.mark.parametrize("drafts", [0, 2])
def test_llama_cpp_gets_the_file_as_it_is(
    peers: Path, installed: Path, file: Path, tmp_path: Path, drafts: int
) -> None:
    from protocol import Options, Spec
    from runner_process import RunnerProcess

    options = Options(str(file), 1, "gguf", drafts, str(installed / "llamacpp"))
    runner = RunnerProcess(Path(sys.executable), peers / "runner_llamacpp.py", options, {}, 30.0)
    try:
        assert runner.engine == "llama.cpp of llama-cpp-python 0.0.1"
        assert runner.settings == {"dtype": "gguf", "threads": 1, "drafts": drafts}
        reply = runner.generate([[1, 2], [7]], 3)
        assert reply.tokens == [[3, 4, 5], [8, 9, 10]]
        assert reply.spec == (Spec([8], [6], by_depth=False) if drafts else None)
    finally:
        runner.end()
    argv = json.loads((tmp_path / "argv.json").read_text())
    assert argv[argv.index("--model") + 1] == str(file)
    room = int(argv[argv.index("--ctx-size") + 1]) // int(argv[argv.index("--parallel") + 1])
    assert room > 2048
    speculation = ["--spec-type", "draft-mtp", "--spec-draft-n-max", "2"]
    assert argv[-4:] == speculation if drafts else "--spec-type" not in argv
    assert not (installed / "llamacpp" / "gguf").exists()  # nothing was converted


@pytest.mark.parametrize(("asked", "dtype"), [("gguf", "auto"), ("bfloat16", "bfloat16")])
def test_nextn_computes_in_the_formats_of_the_file(
    peers: Path, monkeypatch: pytest.MonkeyPatch, file: Path, asked: str, dtype: str
) -> None:
    import runner_nextn
    from protocol import Options

    configs: list[Any] = []

    class Engine:
        startup: dict[str, object] = {"dtype": "bfloat16", "threads": 1, "drafts": 2}  # noqa: RUF012

        def __init__(self, config: object) -> None:
            configs.append(config)

    monkeypatch.setattr(runner_nextn, "Engine", Engine)
    runner_nextn.start(Options(str(file), 1, asked, 2, ""))
    (config,) = configs
    assert (config.model_path, config.dtype, config.speculative_num_steps) == (str(file), dtype, 2)
    assert config.disable_radix_cache


def found_of(speed: float, text: list[int]):
    from measure import Found
    from report import CASES

    return Found("engine", {}, {n: [speed] for n in CASES}, {n: [text] for n in CASES})


def test_one_file_two_engines(
    peers: Path, installed: Path, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    import run

    asked: dict[str, Any] = {}

    def measure(variants, cases, model, folder, threads, rounds, most_wait, say):
        asked.update(variants=[str(v) for v in variants], cases=[c.name for c in cases], model=model)
        return {v: found_of(100.0 if v.engine == "nextn" else 80.0, list(range(20, 40))) for v in variants}

    monkeypatch.setattr(run, "measure", measure)
    monkeypatch.setattr(run, "read_bandwidth", lambda threads: 43_200 * 200.0)
    monkeypatch.setattr(run, "gguf_facts", lambda python, llama_cpp, path: FACTS)
    out = tmp_path / "results"
    argv = ["--gguf", str(file), "--dir", str(installed), "--threads", "1", "--output", str(out)]
    assert run.main(argv) == 0
    assert asked["variants"] == ["nextn:gguf", "nextn:gguf:mtp2", "llamacpp:gguf", "llamacpp:gguf:mtp2"]
    assert asked["cases"] == ["prefill", "prefill2048", "single", "batch8", "batch32"]
    assert asked["model"] == str(file)
    printed = capsys.readouterr().out
    result = json.loads(printed.splitlines()[-1])
    assert (result["model"], result["reference"]) == ("model-Q4_K_M", "nextn:gguf")
    assert result["formats"] == {"Q4_K": 43_200}
    assert result["best"]["single_with_mtp"]["ratio"] == 1.25
    assert result["limits"]["tok_s"] == {"gguf": 200.0}
    assert result["limits"]["shares"] == {"nextn:gguf": 0.5, "llamacpp:gguf": 0.4}
    assert "allows 200 tok/s: nextn:gguf 50%, llamacpp:gguf 40%" in printed
    (kept,) = out.iterdir()
    assert kept.name.startswith("peers-model-q4-k-m_")
    assert json.loads(kept.read_text()) == result


def test_a_file_that_is_none_is_named(
    peers: Path, installed: Path, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import run

    assert run.main(["--gguf", str(file), "--dir", str(installed), "--threads", "1"]) == 2
    assert f"{file} cannot be measured" in capsys.readouterr().err
