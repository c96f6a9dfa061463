"""Checks of lm-eval on a server with MTP, with lm-eval's model types and the tasks in the package."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import plain_calls
from bench import PARSERS, Bench
from findings import Checks, Finding, expect, expect_equal

import nextn
from nextn.bench.local_server import LocalServer

TASKS = Path(nextn.__file__).parent / "data" / "eval"
LIMIT = 8

checks = Checks()


def evaluate(
    bench: Bench, url: str, kind: str, endpoint: str, task: str, *options: str
) -> tuple[dict[str, Any], list[Any]]:
    """Runs lm-eval on a task. Returns the task's scores and its samples."""
    folder = bench.folder / f"{kind}-{task}"
    settings = [
        f"model={bench.model}", f"base_url={url}{endpoint}", f"tokenizer={bench.tokenizer}",
        "tokenizer_backend=huggingface", "num_concurrent=4", *options,
    ]  # fmt: skip
    words = [
        bench.bin / "python", "-m", "lm_eval", "run", "--model", kind, "--model_args", ",".join(settings),
        "--tasks", task, "--include_path", str(TASKS), "--limit", str(LIMIT), "--log_samples",
        "--output_path", str(folder),
    ]  # fmt: skip
    if "chat" in kind:
        words.append("--apply_chat_template")
    bench.run(words, OPENAI_API_KEY="none")
    (scores,) = folder.rglob("results_*.json")
    (samples,) = folder.rglob("samples_*.jsonl")
    lines = samples.read_text().splitlines()
    return json.loads(scores.read_text())["results"][task], [json.loads(line) for line in lines]


@checks("local-completions: loglikelihoods of a multiple-choice task")
def loglikelihoods(bench: Bench, server: LocalServer) -> str:
    scores, samples = evaluate(
        bench, server.url, "local-completions", "/v1/completions", "nextn_next_line", "add_bos_token=True"
    )
    expect_equal(len(samples), LIMIT, "documents")
    right = 0
    for sample in samples:
        sums = [loglikelihood(server, bench.model, *request) for request in contexts_and_ends(sample)]
        answers = [float(answer[0][0]) for answer in sample["resps"]]
        close = all(abs(a - b) < 1e-4 for a, b in zip(sums, answers, strict=True))
        expect(close, f"loglikelihoods {answers}, plain calls give {sums}")
        right += max(range(len(sums)), key=sums.__getitem__) == int(sample["target"])
    expect_equal(scores["acc,none"], right / LIMIT, "its accuracy")
    return f"{4 * LIMIT} loglikelihoods are those of plain calls, and so is the accuracy, {right} of {LIMIT}"


def contexts_and_ends(sample: dict[str, Any]) -> list[tuple[str, str]]:
    """The (context, end) of each choice's request. lm-eval logs the arguments of its requests by number."""
    requests = sample["arguments"]
    return [(requests[name]["arg_0"], requests[name]["arg_1"]) for name in sorted(requests)]


def loglikelihood(server: LocalServer, model: str, context: str, end: str) -> float:
    """The log-likelihood of `end` after `context`, with the tokens that lm-eval sends. These are the n tokens
    of the context without the blanks at its end, and then the tokens after the first n of both texts
    joined."""

    def tokens(text: str) -> list[int]:
        return list(plain_calls.post(server.url + "/tokenize", {"prompt": text})["tokens"])

    before = tokens(context.rstrip())
    prompt = before + tokens(context + end)[len(before) :]
    body = {"model": model, "prompt": prompt, "max_tokens": 0, "echo": True, "logprobs": 0}
    logprobs = plain_calls.post(server.url + "/v1/completions", body)["choices"][0]["logprobs"]
    return float(sum(logprobs["token_logprobs"][len(before) :]))


@checks("local-completions: generate_until")
def generate(bench: Bench, server: LocalServer) -> str:
    _, samples = evaluate(
        bench, server.url, "local-completions", "/v1/completions", "nextn_rest_of_line", "add_bos_token=True"
    )
    expect_equal(len(samples), LIMIT, "documents")
    for sample in samples:
        (prompt, _), *_ = contexts_and_ends(sample)
        body = {"model": bench.model, "prompt": prompt, "max_tokens": 48, "temperature": 0, "stop": ["\n"]}
        text = plain_calls.post(server.url + "/v1/completions", body)["choices"][0]["text"]
        expect_equal(sample["resps"][0][0], text, "text")
    return f"{LIMIT} texts of plain calls without lm-eval"


@checks("local-chat-completions: generate_until")
def generate_chat(bench: Bench, server: LocalServer) -> str:
    _, samples = evaluate(
        bench, server.url, "local-chat-completions", "/v1/chat/completions", "nextn_rest_of_line"
    )
    expect_equal(len(samples), LIMIT, "documents")
    for sample in samples:
        body = {
            "model": bench.model, "messages": [{"role": "user", "content": sample["doc"]["context"]}],
            "max_tokens": 48, "temperature": 0, "stop": ["\n"],
        }  # fmt: skip
        choice = plain_calls.post(server.url + "/v1/chat/completions", body)["choices"][0]
        expect_equal(sample["resps"][0][0], choice["message"]["content"], "text")
    return f"{LIMIT} texts of plain calls without lm-eval"


def check_lm_eval(bench: Bench) -> list[Finding]:
    return checks.run(bench, bench.server(*PARSERS))
