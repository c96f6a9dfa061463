"""`nextn bench serve` against small scripted servers: every backend, counters, failures, exit codes.

That latencies are right is in test_known_latencies.py.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from support.small_tokenizer import write_small_tokenizer

from nextn.bench.apis import BACKENDS
from nextn.bench.datasets import DATASETS
from nextn.cli import main
from nextn.cli.bench import arguments
from nextn.cli.bench import serve as command

GAP = 0.03  # seconds between the chunks of a scripted stream
Chunks = list[dict[str, Any]]


class Scripted:
    """A server that streams three chunks of 1, 2 and 1 tokens. `refuse(n)`: the status of the nth load."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any], str | None]] = []  # path, body, Authorization
        self.pages: dict[str, Callable[[], str]] = {"/v1/models": lambda: json.dumps({"data": [{"id": "m"}]})}
        self.refuse: Callable[[int], int] = lambda n: 200
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                page = outer.pages.get(self.path)
                self.answer(200 if page else 404, (page() if page else "{}").encode())

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                outer.asked.append((self.path, body, self.headers["authorization"]))
                status = outer.refuse(len(outer.asked))
                if status != 200:
                    self.answer(status, b'{"error": {"message": "the queue is full"}}')
                    return
                self.send_response(200)
                self.end_headers()
                ended = False
                for chunk in outer.chunks(self.path):
                    self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
                    self.wfile.flush()
                    ended = ended or "length" in json.dumps(chunk)
                    if not ended and "assistant" not in json.dumps(chunk):
                        time.sleep(GAP)
                self.wfile.write(b"data: [DONE]\n\n")

            def answer(self, status: int, content: bytes) -> None:
                self.send_response(status)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"

    def chunks(self, path: str) -> Chunks:
        if path == "/generate":
            sofar = [("a", 1), ("abc", 3), ("abcd", 4)]
            meta = {"prompt_tokens": 9, "finish_reason": None}
            made: Chunks = [{"text": t, "meta_info": {**meta, "completion_tokens": n}} for t, n in sofar]
            made[-1]["meta_info"]["finish_reason"] = {"type": "length", "length": 4}
            return made
        texts = [("a", None), ("bc", None), ("d", "length")]
        if path == "/v1/chat/completions":
            choices: Chunks = [{"delta": {"role": "assistant"}, "finish_reason": None}]
            choices += [{"delta": {"content": t}, "finish_reason": end} for t, end in texts]
        else:
            choices = [{"text": t, "finish_reason": end} for t, end in texts]
        usage = {"prompt_tokens": 9, "completion_tokens": 4}
        return [*({"choices": [c]} for c in choices), {"choices": [], "usage": usage}]


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    server = Scripted()
    thread = threading.Thread(target=lambda: server.http.serve_forever(0.02))
    thread.start()
    yield server
    server.http.shutdown()
    thread.join()
    server.http.server_close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_small_tokenizer(tmp_path_factory.mktemp("tokenizer")))


def run(scripted: Scripted, *options: str, num_prompts: int = 3) -> int:
    words = ["--base-url", scripted.url, "--num-prompts", str(num_prompts), "--output-len", "4", *options]
    return main(["bench", "serve", *words])


def test_names_are_the_same_on_the_command_line() -> None:
    assert tuple(BACKENDS) == command.BACKENDS
    assert DATASETS == arguments.DATASETS


@pytest.mark.parametrize("backend", BACKENDS)
def test_backends(
    backend: str, scripted: Scripted, folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "out.jsonl"
    words = ["--backend", backend, "--tokenizer", folder, "--dataset-name", "random-ids"]
    words += ["--random-input-len", "12", "--random-output-len", "4", "--random-range-ratio", "1"]
    words += ["--output-file", str(file), "--output-details", "--extra-request-body", '{"extra": 1}']
    assert run(scripted, *words) == 0
    assert run(scripted, *words) == 0
    first, second = map(json.loads, file.read_text().splitlines())
    assert first.keys() == second.keys()
    assert (first["backend"], first["completed"], first["failed"]) == (backend, 3, 0)
    assert (first["total_input_tokens"], first["total_output_tokens"]) == (27, 12)
    assert first["total_output_tokens_retokenized"] == 12  # a token is a byte
    assert first["generated_texts"] == ["abcd"] * 3
    native = backend == "sglang"
    # Three chunks: two gaps; the native API says that the second one brought two tokens.
    assert [len(itls) for itls in first["itls"]] == [3 if native else 2] * 3
    path, body, _ = scripted.asked[1]  # the first is the warm-up
    assert path == BACKENDS[backend].path
    assert body["stream"] is True
    assert body["extra"] == 1
    if native:
        assert body["sampling_params"] == {"temperature": 0.0, "max_new_tokens": 4, "ignore_eos": True}
        assert len(body["input_ids"]) == 12
    elif backend == "sglang-oai-chat":
        assert (body["model"], body["max_completion_tokens"]) == ("m", 4)
        assert body["messages"][0]["role"] == "user"
        assert isinstance(body["messages"][0]["content"], str)
    else:
        assert (body["model"], body["max_tokens"], body["ignore_eos"]) == ("m", 4, True)
        assert len(body["prompt"]) == 12
    assert f"Backend:                                 {backend:<10}" in capsys.readouterr().out


def test_the_warm_up_is_not_measured_and_not_of_the_load(scripted: Scripted) -> None:
    assert run(scripted, "--warmup-requests", "2", "--disable-ignore-eos") == 0
    prompts = [body["prompt"] for _, body, _ in scripted.asked]
    assert len(prompts) == 5
    load = prompts[2:]  # all at once: they arrive in any order
    assert {prompt[::-1] for prompt in prompts[:2]} < set(load)
    assert not set(prompts[:2]) & set(load)
    assert all(body["ignore_eos"] is False for _, body, _ in scripted.asked)


def counters(scripted: Scripted, prefix: str) -> str:
    """Every request so far: 10 steps with 2 drafts each; 8 and 5 of them accepted."""
    n = len(scripted.asked)
    if prefix == "nextn":
        return (
            f"nextn:spec_verify_steps_total {10 * n}\nnextn:spec_committed_tokens_total {23 * n}\n"
            f'nextn:spec_draft_tokens_total{{position="1"}} {10 * n}\n'
            f'nextn:spec_draft_tokens_total{{position="2"}} {10 * n}\n'
            f'nextn:spec_accepted_tokens_total{{position="1"}} {8 * n}\n'
            f'nextn:spec_accepted_tokens_total{{position="2"}} {5 * n}\n'
        )
    name = "vllm:spec_decode_num"
    return (
        f"{name}_drafts_total {10 * n}\n{name}_accepted_tokens_total {13 * n}\n"
        f'{name}_accepted_tokens_per_pos_total{{position="0"}} {8 * n}\n'
        f'{name}_accepted_tokens_per_pos_total{{position="1"}} {5 * n}\n'
    )


@pytest.mark.parametrize("prefix", ["nextn", "vllm"])
def test_accept_length_is_of_the_run(
    prefix: str, scripted: Scripted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scripted.pages["/metrics"] = lambda: counters(scripted, prefix)
    file = tmp_path / "out.jsonl"
    assert run(scripted, "--output-file", str(file)) == 0
    record = json.loads(file.read_text())
    assert record["accept_length"] == pytest.approx(2.3)
    assert record["accept_rates"] == pytest.approx([0.8, 0.5])
    assert (record["accept_length_of"], record["accept_length_source"]) == ("run", prefix)
    out = capsys.readouterr().out
    assert "Accept length:                           2.30      \n" in out
    assert "Acceptance at position 2:                0.50      \n" in out


def test_a_lifetime_s_mean_is_marked(scripted: Scripted, capsys: pytest.CaptureFixture[str]) -> None:
    state = {"internal_states": [{"avg_spec_accept_length": 2.7}]}
    scripted.pages["/server_info"] = lambda: json.dumps(state)
    assert run(scripted) == 0
    out = capsys.readouterr().out
    assert "Accept length:                           2.70      \n" in out
    assert "Accept length is of:                     server's lifetime\n" in out
    scripted.pages["/server_info"] = lambda: json.dumps({"decode": [state]})
    assert run(scripted) == 0
    assert "Accept length:                           2.70      \n" in capsys.readouterr().out


def test_failures_are_counted_by_kind(
    scripted: Scripted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scripted.refuse = lambda n: {2: 503, 4: 500, 5: 503}.get(n, 200)
    file = tmp_path / "out.jsonl"
    words = ["--max-concurrency", "1", "--output-file", str(file), "--goodput", "e2el:5000"]
    assert run(scripted, *words, num_prompts=5) == 1
    out, err = capsys.readouterr()
    assert "Successful requests:                     2         \n" in out
    assert "Failed requests:                         3         \n" in out
    assert "  HTTP 503:                              2         \n" in out
    assert "  HTTP 500:                              1         \n" in out
    assert "HTTP 503, the first: the server answered with an error (503): the queue is full" in err
    record = json.loads(file.read_text())
    assert record["errors_by_kind"] == {"HTTP 503": 2, "HTTP 500": 1}
    assert (record["completed"], record["failed"], record["num_prompts"]) == (2, 3, 5)
    assert record["goodput"] == pytest.approx(2 / record["duration"])


def test_arrivals_and_concurrency(scripted: Scripted, tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    words = ["--output-file", str(file), "--plot", str(tmp_path / "p.png"), "--request-rate", "20"]
    assert run(scripted, *words, num_prompts=6) == 0
    assert run(scripted, "--output-file", str(file), "--max-concurrency", "2", num_prompts=6) == 0
    spread, limited = map(json.loads, file.read_text().splitlines())
    assert (spread["request_rate"], limited["request_rate"]) == (20.0, "inf")
    assert spread["duration"] > 0.05
    assert 1.5 < limited["concurrency"] <= 2.0
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_a_key_is_sent_to_a_server_of_somebody_else(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "word")
    assert run(scripted) == 0
    assert {key for _, _, key in scripted.asked} == {"Bearer word"}


def test_a_warm_up_that_fails(scripted: Scripted, capsys: pytest.CaptureFixture[str]) -> None:
    scripted.refuse = lambda n: 401
    assert run(scripted) == 1
    assert "error: the warm-up failed (HTTP 401)" in capsys.readouterr().err
    assert len(scripted.asked) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--goodput", "itl:3"], "--goodput itl:3"),
        (["--request-rate", "0"], "--request-rate is 0.0"),
        (["--dataset-name", "random"], "needs the model's tokenizer"),
        (["--tokenizer", "/nowhere"], "/nowhere: there is no such folder"),
        (["--extra-request-body", "[1]"], "--extra-request-body must be a JSON object"),
        (["--extra-request-body", "{"], "--extra-request-body is not JSON"),
        (["--port", "1"], "--base-url says where the server is"),
        (["--", "--speculative-num-steps", "3"], "options after -- are for a server that is started here"),
    ],
)
def test_mistakes(
    words: list[str], message: str, scripted: Scripted, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(scripted, *words) == 2
    assert message in capsys.readouterr().err
    assert not scripted.asked


def test_mistakes_without_a_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "serve", "--backend", "sglang"]) == 2
    assert "--backend sglang needs --base-url" in capsys.readouterr().err
    assert main(["bench", "serve", "--host", "somewhere"]) == 2
    assert "--host needs --port" in capsys.readouterr().err
    assert main(["bench", "serve", "--port", "9"]) == 1
    assert "/v1/models lists no model" in capsys.readouterr().err
