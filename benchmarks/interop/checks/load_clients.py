"""Checks of sglang's bench_serving, `vllm bench serve` and guidellm, with each backend, on random prompts.

The numbers of requests and tokens that a client reports must equal the server's counts. Its times must be
plausible.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from bench import PARSERS, Bench
from clients import VLLM_BENCH_SERVE, Figures, read_guidellm, read_sglang, read_vllm
from findings import Checks, Finding, expect, expect_equal
from server_figures import counted, read_totals

from nextn.bench.local_server import LocalServer

REQUESTS, STREAMS, PROMPT, TOKENS = 12, 4, 48, 24

RANDOM_IDS = (
    "--dataset-name", "random-ids", "--num-prompts", str(REQUESTS), "--random-input-len", str(PROMPT),
    "--random-output-len", str(TOKENS),
)  # fmt: skip

sglang_checks, vllm_checks, guidellm_checks = Checks(), Checks(), Checks()


def load(
    bench: Bench, server: LocalServer, words: Sequence[str | Path], read: Callable[[Path], Figures],
    result: Path, *, exact_input: bool,
) -> str:  # fmt: skip
    """Runs the client and compares its results with the server's. Returns a summary; raises Failed.
    `exact_input`: the client counts a prompt's tokens exactly like the server, which is not possible in a
    chat."""
    before = read_totals(server.url)
    result.unlink(missing_ok=True)
    bench.run(words, OPENAI_API_KEY="none")
    expect(result.is_file(), "it wrote no result")
    said = read(result)
    found = counted(before, read_totals(server.url), STREAMS)
    expect_equal(said["requests"], REQUESTS, "requests")
    for name in ("requests", "output_tokens", *(["input_tokens"] if exact_input else [])):
        expect_equal(said[name], found[name], f"{name} said, and counted by the server")
    expect(0 < said["ttft_ms"] < said["e2e_ms"], f"TTFT {said['ttft_ms']}, E2E {said['e2e_ms']} ms")
    expect(said["tpot_ms"] > 0 and said["output_throughput"] > 0, f"TPOT or throughput of {said}")
    expect(said["e2e_ms"] > 0.9 * found["e2e_ms"], f"E2E {said['e2e_ms']}, server's {found['e2e_ms']} ms")
    summary = f"{said['requests']:.0f} requests and {said['output_tokens']:.0f} tokens, as the server counted"
    if "accept_length" not in said:
        return summary
    expect(said["accept_length"] > 1, f"accept length {said['accept_length']}")
    return f"{summary}; accept length {said['accept_length']:.2f}"


def sglang_load(bench: Bench, server: LocalServer, backend: str, *options: str) -> str:
    """Runs sglang's bench_serving. Random ids that are sent as text become other ids in the server, so the
    number of input tokens is exact only if they are sent as ids."""
    result = bench.folder / "sglang.json"
    options = options or RANDOM_IDS
    exact = options != RANDOM_IDS
    words = [
        bench.bin / "python", "-m", "sglang.benchmark.serving", "--backend", backend,
        "--base-url", server.url, "--model", bench.model, "--tokenizer", str(bench.tokenizer),
        "--max-concurrency", str(STREAMS), "--warmup-requests", "0", "--output-file", str(result),
        "--output-details", "--disable-tqdm", *options,
    ]  # fmt: skip
    return load(bench, server, words, read_sglang, result, exact_input=exact)


@sglang_checks("--backend sglang: /generate")
def sglang_native(bench: Bench, server: LocalServer) -> str:
    return sglang_load(bench, server, "sglang", *RANDOM_IDS, "--tokenize-prompt")


@sglang_checks("--backend sglang-oai: /v1/completions")
def sglang_completions(bench: Bench, server: LocalServer) -> str:
    return sglang_load(bench, server, "sglang-oai")


@sglang_checks("--backend sglang-oai-chat: /v1/chat/completions")
def sglang_chat(bench: Bench, server: LocalServer) -> str:
    return sglang_load(bench, server, "sglang-oai-chat")


@sglang_checks("--backend vllm")
def sglang_as_vllm(bench: Bench, server: LocalServer) -> str:
    return sglang_load(bench, server, "vllm")


@sglang_checks("shared prefixes after --flush-cache")
def sglang_prefixes(bench: Bench, server: LocalServer) -> str:
    return sglang_load(
        bench, server, "sglang", "--dataset-name", "generated-shared-prefix", "--gsp-num-groups", "3",
        "--gsp-prompts-per-group", "4", "--gsp-system-prompt-len", "64", "--gsp-question-len", "16",
        "--gsp-output-len", str(TOKENS), "--flush-cache",
    )  # fmt: skip


def vllm_load(bench: Bench, server: LocalServer, backend: str, endpoint: str) -> str:
    result = bench.folder / "vllm.json"
    words = [
        bench.bin / "python", "-c", VLLM_BENCH_SERVE, "--backend", backend, "--base-url", server.url,
        "--endpoint", endpoint, "--model", bench.model, "--tokenizer", str(bench.tokenizer),
        "--dataset-name", "random", "--random-input-len", str(PROMPT), "--random-output-len", str(TOKENS),
        "--num-prompts", str(REQUESTS), "--max-concurrency", str(STREAMS), "--ignore-eos",
        "--percentile-metrics", "ttft,tpot,itl,e2el", "--save-result", "--result-dir", str(bench.folder),
        "--result-filename", result.name, "--ready-check-timeout-sec", "0", "--disable-tqdm",
    ]  # fmt: skip
    return load(bench, server, words, read_vllm, result, exact_input="chat" not in backend)


@vllm_checks("--backend openai: /v1/completions")
def vllm_completions(bench: Bench, server: LocalServer) -> str:
    return vllm_load(bench, server, "openai", "/v1/completions")


@vllm_checks("--backend openai-chat: /v1/chat/completions")
def vllm_chat(bench: Bench, server: LocalServer) -> str:
    return vllm_load(bench, server, "openai-chat", "/v1/chat/completions")


def guidellm_load(bench: Bench, server: LocalServer, endpoint: str, profile: str) -> str:
    result = bench.folder / "guidellm.json"
    backend = {
        "kind": "openai_http", "target": server.url, "model": bench.model, "request_format": endpoint,
    }  # fmt: skip
    words = [
        bench.bin / "python", "-m", "guidellm", "run", "--backend", json.dumps(backend), "--profile", profile,
        "--constraint", f"kind=max_requests,count={REQUESTS}",
        "--tokenizer", f"kind=huggingface_auto,model={bench.tokenizer}",
        "--data", f"kind=synthetic_text,prompt_tokens={PROMPT},output_tokens={TOKENS}",
        "--output", f"kind=json,path={result}", "--disable-console",
    ]  # fmt: skip
    return load(bench, server, words, read_guidellm, result, exact_input=True)


@guidellm_checks("/v1/completions, profile concurrent")
def guidellm_concurrent(bench: Bench, server: LocalServer) -> str:
    return guidellm_load(bench, server, "/v1/completions", f"kind=concurrent,streams={STREAMS}")


@guidellm_checks("/v1/chat/completions, profile synchronous")
def guidellm_synchronous(bench: Bench, server: LocalServer) -> str:
    return guidellm_load(bench, server, "/v1/chat/completions", "kind=synchronous")


@guidellm_checks("/v1/chat/completions, profile constant")
def guidellm_constant(bench: Bench, server: LocalServer) -> str:
    return guidellm_load(bench, server, "/v1/chat/completions", "kind=constant,rate=6")


def check_sglang(bench: Bench) -> list[Finding]:
    return sglang_checks.run(bench, bench.server(*PARSERS))


def check_vllm(bench: Bench) -> list[Finding]:
    return vllm_checks.run(bench, bench.server(*PARSERS))


def check_guidellm(bench: Bench) -> list[Finding]:
    return guidellm_checks.run(bench, bench.server(*PARSERS))
