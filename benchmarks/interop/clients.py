"""The load clients: each client's command for a load, and its results under common names.

All clients read the same prompts from one JSONL file, which has the fields of each of them. If a client uses
one of the common names with another definition, its value has another key here; README.md has the table.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from environments import ENVIRONMENTS

import nextn
from nextn.bench.prompts import heldout_prompts

Figures = dict[str, float]

OURS = "nextn"
SGLANG_SEED = 1
SHUFFLED = ".shuffled.jsonl"

# vLLM's command line needs the metadata of a package named vllm, but the CPU build has another name.
VLLM_BENCH_SERVE = """\
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""


@dataclass(frozen=True)
class Load:
    """`concurrency` streams of `prompts` completions of `tokens` tokens each."""

    prompts: int
    concurrency: int
    tokens: int

    def write(self, path: Path) -> None:
        """Writes the prompts to `path`, and next to it a second file in another order: sglang's shuffle turns
        that order into the first file's."""
        lines = [self.line(text) for text in heldout_prompts(self.prompts)]
        path.write_text("".join(lines), encoding="utf-8")
        order = list(range(self.prompts))
        random.Random(SGLANG_SEED).shuffle(order)
        for place, line in zip(order, list(lines), strict=True):
            lines[place] = line
        path.with_suffix(SHUFFLED).write_text("".join(lines), encoding="utf-8")

    def line(self, text: str) -> str:
        turns = [{"content": text}, {"content": text}]
        fields = {
            "prompt": text, "output_len": self.tokens, "output_tokens": self.tokens,
            "output_tokens_count": self.tokens, "conversations": turns,
        }  # fmt: skip
        return json.dumps(fields) + "\n"


@dataclass(frozen=True)
class Target:
    """The server of a load, and the folder in which the client works."""

    url: str
    model: str
    tokenizer: Path
    dataset: Path
    folder: Path

    @property
    def result(self) -> Path:
        """The file that the client writes."""
        return self.folder / "result.json"


@dataclass(frozen=True)
class Client:
    """A load client. `name` is also the name of its environment, except for our own client."""

    name: str
    words: Callable[[Load, Target], list[str]]  # the command's words after the interpreter
    read: Callable[[Path], Figures]

    def interpreter(self, envs: Path) -> Path:
        return Path(sys.executable) if self.name == OURS else ENVIRONMENTS[self.name].python(envs)

    def version(self, envs: Path) -> str | None:
        """The client's version; None if it is not installed."""
        return nextn.__version__ if self.name == OURS else ENVIRONMENTS[self.name].version(envs)


def nextn_words(load: Load, target: Target) -> list[str]:
    return [
        "-m", "nextn", "bench", "serve", "--base-url", target.url, "--dataset-name", "custom",
        "--dataset-path", str(target.dataset), "--num-prompts", str(load.prompts),
        "--max-concurrency", str(load.concurrency), "--warmup-requests", "0",
        "--output-file", str(target.result), "--output-details",
    ]  # fmt: skip


def read_nextn(path: Path) -> Figures:
    found = json.loads(path.read_text())
    gaps = [gap for gaps in found["itls"] for gap in gaps]
    return bench_serving_figures(found) | {
        "e2e_ms": found["mean_e2e_latency_ms"],
        "itl_chunk_ms": found["mean_itl_ms"],
        "itl_token_ms": 1000 * sum(gaps) / sum(tokens - 1 for tokens in found["output_lens"]),
        **optional(accept_length=found["accept_length"]),
    }


def sglang_words(load: Load, target: Target) -> list[str]:
    return [
        "-m", "sglang.benchmark.serving", "--backend", "sglang-oai", "--base-url", target.url,
        "--tokenizer", str(target.tokenizer), "--dataset-name", "custom",
        "--dataset-path", str(target.dataset.with_suffix(SHUFFLED)), "--num-prompts", str(load.prompts),
        "--sharegpt-output-len", str(load.tokens), "--max-concurrency", str(load.concurrency),
        "--seed", str(SGLANG_SEED), "--warmup-requests", "0", "--output-file", str(target.result),
        "--output-details", "--disable-tqdm",
    ]  # fmt: skip


def read_sglang(path: Path) -> Figures:
    """Reads sglang's results. It counts a chunk's tokens with the tokenizer and divides the gap among them.
    Its accept length covers everything since the server started."""
    found = json.loads(path.read_text())
    return bench_serving_figures(found) | {
        "e2e_ms": found["mean_e2e_latency_ms"],
        "itl_token_ms": found["mean_itl_ms"],
        **optional(accept_length=found["accept_length"]),
    }


def vllm_words(load: Load, target: Target) -> list[str]:
    return [
        "-c", VLLM_BENCH_SERVE, "--backend", "openai", "--base-url", target.url, "--model", target.model,
        "--tokenizer", str(target.tokenizer), "--dataset-name", "custom",
        "--dataset-path", str(target.dataset), "--num-prompts", str(load.prompts),
        "--custom-output-len", str(load.tokens), "--skip-chat-template", "--disable-shuffle",
        "--ignore-eos", "--temperature", "0", "--max-concurrency", str(load.concurrency),
        "--num-warmups", "0", "--ready-check-timeout-sec", "0",
        "--percentile-metrics", "ttft,tpot,itl,e2el", "--save-result",
        "--result-dir", str(target.folder), "--result-filename", target.result.name, "--disable-tqdm",
    ]  # fmt: skip


def read_vllm(path: Path) -> Figures:
    """Reads vLLM's results. Its accept length leaves out steps without drafts, at the end of a request."""
    found = json.loads(path.read_text())
    return bench_serving_figures(found) | {
        "e2e_ms": found["mean_e2el_ms"],
        "itl_chunk_ms": found["mean_itl_ms"],
        **optional(accept_length=found.get("spec_decode_acceptance_length")),
    }


def guidellm_words(load: Load, target: Target) -> list[str]:
    backend = {
        "kind": "openai_http", "target": target.url, "model": target.model,
        "request_format": "/v1/completions", "extras": {"body": {"temperature": 0}},
    }  # fmt: skip
    return [
        "-m", "guidellm", "run", "--backend", json.dumps(backend),
        "--profile", f"kind=concurrent,streams={load.concurrency}",
        "--constraint", f"kind=max_requests,count={load.prompts}",
        "--tokenizer", f"kind=huggingface_auto,model={target.tokenizer}",
        "--data", f"kind=json_file,path={target.dataset}",
        "--output", f"kind=json,path={target.result}", "--disable-console",
    ]  # fmt: skip


def read_guidellm(path: Path) -> Figures:
    """Reads guidellm's results. Its ITL is (E2E - TTFT) / (tokens - 1), which the others call TPOT. Its TPOT
    is E2E / tokens."""
    metrics = json.loads(path.read_text())["benchmarks"][0]["metrics"]

    def of(name: str, kind: str = "mean") -> float:
        return float(metrics[name]["successful"][kind])

    return {
        "requests": metrics["request_totals"]["successful"],
        "input_tokens": of("prompt_token_count", "total_sum"),
        "output_tokens": of("output_token_count", "total_sum"),
        "output_throughput": of("output_tokens_per_second"),
        "e2e_ms": 1000 * of("request_latency"),
        "ttft_ms": of("time_to_first_token_ms"),
        "tpot_ms": of("inter_token_latency_ms"),
    }


def bench_serving_figures(found: dict[str, Any]) -> Figures:
    """The results that have the same names in all clients derived from bench_serving."""
    return {
        "requests": found["completed"],
        "input_tokens": found["total_input_tokens"],
        "output_tokens": found["total_output_tokens"],
        "output_throughput": found["output_throughput"],
        "ttft_ms": found["mean_ttft_ms"],
        "tpot_ms": found["mean_tpot_ms"],
    }


def optional(**values: float | None) -> Figures:
    return {name: value for name, value in values.items() if value is not None}


CLIENTS = (
    Client(OURS, nextn_words, read_nextn),
    Client("sglang", sglang_words, read_sglang),
    Client("vllm", vllm_words, read_vllm),
    Client("guidellm", guidellm_words, read_guidellm),
)
