"""The server on real engines, with a small model with random weights. (The embedded model: test_demo.py.)"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from support.checkpoints import tiny_config
from support.server_process import ServerProcess, until
from support.small_tokenizer import write_small_tokenizer

OPTIONS = ("--port", "0", "--threads", "1", "--check-integrity", "--kv-cache-tokens", "2048")


def serve(model: str, *options: str) -> ServerProcess:
    return ServerProcess(["-m", "nextn", "serve", "--model-path", model, *OPTIONS, *options])


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = write_small_tokenizer(tmp_path_factory.mktemp("checkpoint") / "random")
    (folder / "config.json").write_text(json.dumps(tiny_config(vocab_size=258)))
    return str(folder)


@pytest.fixture(scope="module")
def drafting(checkpoint: str) -> Iterator[ServerProcess]:
    with serve(checkpoint, "--load-format", "dummy", "--speculative-num-steps", "3") as server:
        yield server


def complete(server: ServerProcess, **fields: Any) -> dict[str, Any]:
    response = httpx.post(server.url + "/v1/completions", json=fields, timeout=60)
    assert response.status_code == 200, response.text
    answer = response.json()
    return {"choices": answer["choices"], "usage": answer["usage"]}


def complete_uncached(server: ServerProcess, **fields: Any) -> dict[str, Any]:
    assert server.post("/flush_cache").status_code == 200
    return complete(server, **fields)


BODIES: list[dict[str, Any]] = [
    {"prompt": "def f():", "max_tokens": 40, "temperature": 0},
    {"prompt": "def f():", "max_tokens": 40, "seed": 1},
    {"prompt": ["a", "b" * 50], "n": 2, "max_tokens": 20, "seed": 2, "top_k": 20, "top_p": 0.9},
    {"prompt": "x", "max_tokens": 60, "seed": 3, "ignore_eos": True, "frequency_penalty": 0.5},
    {"prompt": "y", "max_tokens": 100, "seed": 4, "stop": ["e", "a"]},
    {"prompt": "z", "max_tokens": 100, "seed": 5, "stop_token_ids": list(range(100, 110)), "min_tokens": 5},
]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: json.dumps(body)[:50])
def test_drafting_changes_nothing(drafting: ServerProcess, body: dict[str, Any]) -> None:
    """Texts, finish reasons and usage, alone and beside others."""
    expected = complete_uncached(drafting, **body, speculative=False)
    assert complete_uncached(drafting, **body) == expected
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda _: complete(drafting, **body), range(8)))
    for answer in together:
        assert answer["choices"] == expected["choices"]
        assert answer["usage"]["completion_tokens"] == expected["usage"]["completion_tokens"]


def test_sixteen_clients_stream(drafting: ServerProcess) -> None:
    def text(client: openai.OpenAI, seed: int) -> str:
        stream = client.completions.create(
            model="random", prompt=f"# {seed}", seed=seed, max_tokens=30, stream=True
        )
        return "".join(chunk.choices[0].text for chunk in stream)

    with (
        openai.OpenAI(base_url=drafting.url + "/v1", api_key="none", max_retries=0) as client,
        ThreadPoolExecutor(16) as pool,
    ):
        together = list(pool.map(lambda seed: text(client, seed), range(16)))
    bodies = [{"prompt": f"# {seed}", "seed": seed, "max_tokens": 30} for seed in range(16)]
    expected = [complete(drafting, **body, speculative=False) for body in bodies]
    assert together == [answer["choices"][0]["text"] for answer in expected]


def test_figures_of_a_real_engine(drafting: ServerProcess) -> None:
    answer = complete(drafting, prompt="q", max_tokens=50, ignore_eos=True, return_spec_tokens_details=True)
    spec = answer["usage"]["spec_details"]
    assert len(spec["proposed"]) == 3
    assert spec["verify_steps"] * spec["accept_length"] == pytest.approx(49, abs=0.1)
    metrics = drafting.metrics()
    assert metrics["nextn:max_total_num_tokens"] == 2048
    assert 1 <= metrics["nextn:spec_accept_length"] <= 4
    assert any(line.startswith("  kv draft") for line in drafting.stdout)
    assert "MTP 3 drafts" in drafting.stdout[-1]


def test_a_client_that_leaves_frees_its_pages(drafting: ServerProcess) -> None:
    body = {"prompt": "x", "max_tokens": 240, "ignore_eos": True, "n": 100, "stream": True}
    with httpx.stream("POST", drafting.url + "/v1/completions", json=body, timeout=30) as stream:
        lines = stream.iter_lines()
        next(lines)
        until(lambda: drafting.metrics()["nextn:num_used_tokens"] > 0)
    until(lambda: drafting.metrics()["nextn:num_running_reqs"] == 0)
    assert drafting.metrics()["nextn:num_used_tokens"] == 0


def test_lossy_verification_is_told(drafting: ServerProcess) -> None:
    """In the usage of every answer that was not greedy."""
    typical = {"verify": "typical", "accept_threshold_acc": 0.5}
    body = {"prompt": "x", "max_tokens": 20, "seed": 1, "speculative": typical}
    assert complete(drafting, **body)["usage"]["spec_details"]["lossy"]
    assert "spec_details" not in complete(drafting, **body, temperature=0)["usage"]


def test_a_stop_string_cuts_the_same_text(drafting: ServerProcess) -> None:
    body = {"prompt": "y", "max_tokens": 100, "seed": 4, "ignore_eos": True}
    whole = complete(drafting, **body)["choices"][0]["text"]
    stop = next(letter for letter in whole[30:] if letter.isascii())
    cut = complete(drafting, **body, stop=stop)["choices"][0]
    assert cut["text"] == whole.partition(stop)[0]
    assert cut["finish_reason"] == "stop"


def test_a_second_time_comes_from_the_cache(drafting: ServerProcess) -> None:
    body: dict[str, Any] = {"prompt": "x = 1\n" * 20, "max_tokens": 16, "temperature": 0}
    first, second = complete(drafting, **body), complete(drafting, **body)
    assert second["choices"] == first["choices"]
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
