"""Every option once: name, default, help. The CLI, the checks and docs/options.md come from here.

Names are SGLang's where SGLang has the option; vLLM's and xLLM's spellings are aliases. An option of
theirs that nextn does not honour is refused by name, see `REFUSED`.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from nextn.draft import AUTO_DEPTH, MAX_DRAFTS, MAX_TOPK, MOST_DEPTH, Shape, tree_size
from nextn.request import CHAINS_ONLY, VERIFY_MODES, SpeculativeParams

EMBEDDED = "nextn-tiny"
API_KEY_VARIABLE = "NEXTN_API_KEY"
FAKE = "fake"  # the model of scripted logits, nextn.models.fake


def model_folder(model_path: str) -> Path:
    """Where a model lies. The embedded model's name stands for its folder in the package; so does the
    fake model's, which borrows its tokenizer."""
    if model_path == EMBEDDED or model_path.partition(":")[0] == FAKE:
        return Path(__file__).parent / "data" / EMBEDDED
    return Path(model_path)


def usable_cores() -> int:
    """Cores that this process may run on; where the system does not say (macOS), all there are."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def option(
    default: Any,
    group: str,
    help: str,
    *aliases: str,
    choices: tuple[str, ...] = (),
    words: Mapping[str, Any] = MappingProxyType({}),
) -> Any:
    """words: that stand for values which the type does not read."""
    meta = {"group": group, "help": help, "aliases": aliases, "choices": choices, "words": words}
    return dataclasses.field(default=default, metadata=meta)


@dataclass(frozen=True)
class EngineConfig:
    """What one engine needs. Frozen: what is found out at run time is kept elsewhere.

    Raises ValueError from `check` naming the option (as on the command line) and the fix.
    """

    model_path: str = option(
        EMBEDDED,
        "model",
        "checkpoint folder in DeepSeek's layout, or nextn-tiny, the model in the package",
        "--model",
    )
    load_format: str = option(
        "auto", "model", "auto: safetensors; dummy: random weights", choices=("auto", "dummy")
    )
    dtype: str = option(
        "auto",
        "model",
        "arithmetic; auto is bfloat16 with the native CPU kernels, float32 with plain torch: what is exact "
        "for any batch",
        choices=("auto", "float32", "bfloat16"),
    )
    device: str = option(
        "auto", "model", "auto: cpu, unless a CUDA device is there", choices=("auto", "cpu", "cuda")
    )
    kernel_backend: str = option(
        "auto",
        "model",
        "cpu: the native kernels; reference: plain torch; auto: cpu where they are built and can serve",
        choices=("auto", "cpu", "reference"),
    )
    quantization: str | None = option(
        None,
        "model",
        "w8a16: the layers' matrices in int8, one scale for each output, at load (native kernels); default: "
        "as the checkpoint stores them (bf16, f32 or FP8 blocks)",
        choices=("w8a16",),
    )
    context_length: int | None = option(
        None, "model", "longest prompt + output in tokens; default: the model's own", "--max-model-len"
    )
    random_seed: int = option(0, "model", "seed of dummy weights", "--seed")
    threads: int | None = option(
        None,
        "model",
        "CPU threads of the engine; default: the cores it may use (with plain torch one less)",
    )

    kv_cache_tokens: int | None = option(
        None,
        "memory",
        "slots of the KV pool; default: 32768 on CPU, sized by --mem-fraction-static on GPU",
        "--max-total-tokens",
    )
    mem_fraction_static: float = option(
        0.85,
        "memory",
        "GPU: share of free memory for the KV pool after loading",
        "--max_memory_utilization",
        "--gpu-memory-utilization",
    )
    page_size: int = option(16, "memory", "tokens in a page of the KV pool", "--block_size", "--block-size")
    disable_radix_cache: bool = option(False, "memory", "keep no prefix cache")

    chunked_prefill_size: int = option(
        512,
        "scheduling",
        "token budget of one step, prompts and running requests together",
        "--max_tokens_per_batch",
        "--max-num-batched-tokens",
    )
    prefill_attention: str = option(
        "absorbed",
        "scheduling",
        "MLA form for prompts; naive takes fewer operations on long ones, and gives up identical text "
        "between a prefix-cache hit or a retraction and a fresh run",
        choices=("absorbed", "naive"),
    )
    max_running_requests: int = option(
        64, "scheduling", "most requests in one step", "--max_seqs_per_batch", "--max-num-seqs"
    )
    check_integrity: bool = option(
        False, "scheduling", "recheck every bookkeeping structure after every step (debug)"
    )

    speculative_algorithm: str | None = option(
        None,
        "speculation",
        "NEXTN, EAGLE (the same): draft with an MTP layer; NGRAM: with what followed earlier in the "
        "request's own text, which needs no layer; NEXTN+NGRAM: with whichever has held more often; default: "
        "NEXTN if there is a layer",
        choices=("NEXTN", "EAGLE", "NGRAM", "NEXTN+NGRAM", "NONE"),
    )
    speculative_draft_model_path: str | None = option(
        None,
        "speculation",
        "folder to take the MTP layer from, in place of --model-path: written by nextn export-mtp, SGLang's "
        "or xLLM's export, or a whole checkpoint; not read with speculation off",
        "--speculative-draft-model",
        "--draft_model",
    )
    speculative_num_steps: int | None = option(
        None,
        "speculation",
        "drafts per step, 0 is off; default 2; auto (experimental): for each request as many as "
        "pay, up to 8, by what steps cost and how often drafts have held; of a tree, or with "
        "--speculative-num-draft-tokens or a simulated accept length, auto is 2",
        "--num_speculative_tokens",
        "--num-speculative-tokens",
        words={"auto": AUTO_DEPTH},
    )
    speculative_eagle_topk: int = option(
        1, "speculation", "branches that a draft keeps at each depth; 1: a chain, more: a tree"
    )
    speculative_draft_model_quantization: str | None = option(
        None,
        "speculation",
        "weights of the drafter, whose guesses are verified: w8a16 holds them in int8 (native kernels; texts "
        "stay the same), unquant as the checkpoint does; default: w8a16 where they are too large for a cache",
        choices=("w8a16", "unquant"),
    )
    speculative_token_map: str | None = option(
        None,
        "speculation",
        "file of the token ids that may be drafted (.pt, .npy or .json: a list, as FR-Spec's); the drafter's "
        "head has rows for these only (texts stay the same)",
    )
    speculative_simulate_accept_length: float | None = option(
        None,
        "speculation",
        "for benchmarks on dummy weights: accept drafts by lot, so that a step commits this many tokens on "
        "average (seeded by the request); the texts are then NOT the model's",
    )
    speculative_num_draft_tokens: int | None = option(
        None,
        "speculation",
        "nodes verified per step, the root counted: of a tree the likeliest; in a chain always "
        "speculative-num-steps + 1; default of a tree: topk * num-steps + 1",
    )

    speculative_verify: str = option(
        "exact",
        "speculation",
        "exact: the text without drafts, byte for byte; rejection, block: its distribution (chains only); "
        "typical: what the model finds likely enough, LOSSY where a threshold is below 1; a request may ask "
        "for another",
        choices=VERIFY_MODES,
    )
    speculative_accept_threshold_single: float = option(
        1.0, "speculation", "of typical: a draft at least so likely always holds; LOSSY below 1"
    )
    speculative_accept_threshold_acc: float = option(
        1.0,
        "speculation",
        "of typical: divides the chance of a draft, and of those tried before it, to hold; LOSSY below 1",
    )

    grammar_backend: str = option(
        "llguidance",
        "structured output",
        "what keeps texts to schemas, regular expressions and grammars; xgrammar: pip install "
        "'nextn[xgrammar]'; none: such requests are refused",
        choices=("llguidance", "xgrammar", "none"),
    )
    constrained_json_disable_any_whitespace: bool = option(
        False, "structured output", "JSON by a schema comes without whitespace between its parts"
    )

    def check(self) -> None:
        def need(ok: bool, name: str, rule: str) -> None:
            if not ok:
                raise ValueError(f"--{name.replace('_', '-')} is {getattr(self, name)!r}: {rule}")

        for field in dataclasses.fields(self):
            choices, value = field.metadata["choices"], getattr(self, field.name)
            need(
                not choices or value is None or value in choices,
                field.name,
                f"choose from {', '.join(choices)}",
            )
        for name in ("context_length", "threads", "kv_cache_tokens"):
            need(getattr(self, name) is None or getattr(self, name) >= 1, name, "it must be at least 1")
        need(
            0.05 <= self.mem_fraction_static <= 0.98,
            "mem_fraction_static",
            "it must be between 0.05 and 0.98",
        )
        need(1 <= self.page_size <= 1024, "page_size", "it must be between 1 and 1024")
        need(self.chunked_prefill_size >= 16, "chunked_prefill_size", "it must be at least 16")
        need(self.max_running_requests >= 1, "max_running_requests", "it must be at least 1")
        need(
            self.max_running_requests <= self.chunked_prefill_size * 7 // 8,
            "max_running_requests",
            "running requests may take 7/8 of a step's token budget at most; "
            f"raise --chunked-prefill-size (now {self.chunked_prefill_size}) or lower it",
        )
        need(
            self.speculative_num_steps in (None, AUTO_DEPTH) or 0 <= self.speculative_num_steps <= MAX_DRAFTS,
            "speculative_num_steps",
            f"it must be between 0 (off) and {MAX_DRAFTS}",
        )
        simulated = self.speculative_simulate_accept_length
        need(
            simulated is None or 1 <= simulated <= self.num_drafts + 1,
            "speculative_simulate_accept_length",
            f"it must be between 1 and --speculative-num-steps + 1 = {self.num_drafts + 1}",
        )
        topk, steps, nodes = self.speculative_eagle_topk, self.num_drafts, self.speculative_num_draft_tokens
        need(1 <= topk <= MAX_TOPK, "speculative_eagle_topk", f"it must be between 1 and {MAX_TOPK}")
        if nodes is not None and steps:
            most = tree_size(topk, steps) + 1
            need(
                topk > 1 or nodes == most,
                "speculative_num_draft_tokens",
                f"a chain verifies --speculative-num-steps + 1 = {most} tokens; leave it out",
            )
            need(
                steps < nodes <= most,
                "speculative_num_draft_tokens",
                f"a tree of --speculative-eagle-topk {topk} and --speculative-num-steps {steps} has at "
                f"most {most} nodes, its root counted, and needs {steps + 1} to be that deep",
            )
        if self.ngrams:
            algorithm = f"--speculative-algorithm {self.speculative_algorithm}"
            need(
                self.speculative_verify not in CHAINS_ONLY,
                "speculative_verify",
                f"it weighs the drafter's probabilities, and {algorithm} drafts without any; choose exact or "
                "typical",
            )
            need(topk == 1, "speculative_eagle_topk", f"{algorithm} drafts chains; leave it out")
            for name in () if self.mtp else ("draft_model_path", "draft_model_quantization", "token_map"):
                need(
                    getattr(self, f"speculative_{name}") is None,
                    f"speculative_{name}",
                    f"{algorithm} drafts without a model; leave one of them out",
                )
        need(
            topk == 1 or self.speculative_verify not in CHAINS_ONLY,
            "speculative_verify",
            f"it verifies chains, not the trees of --speculative-eagle-topk {topk}; choose exact or typical",
        )
        need(
            simulated is None or self.speculative_verify == "exact",
            "speculative_verify",
            "with --speculative-simulate-accept-length drafts are accepted by lot; leave it out",
        )
        for name in ("speculative_accept_threshold_single", "speculative_accept_threshold_acc"):
            value = getattr(self, name)
            need(0.0 <= value <= 1.0, name, "it must be between 0 and 1")
            need(
                value == 1.0 or self.speculative_verify == "typical",
                name,
                f"--speculative-verify {self.speculative_verify} has no threshold; it needs typical",
            )
        need(
            self.speculative_algorithm != "NONE" or not self.speculative_num_steps,
            "speculative_num_steps",
            "drafts need --speculative-algorithm NEXTN or NGRAM, not NONE",
        )

    @property
    def mtp(self) -> bool:
        """Is an MTP layer to draft?"""
        return self.num_drafts > 0 and self.speculative_algorithm != "NGRAM"

    @property
    def ngrams(self) -> bool:
        """May n-grams draft?"""
        return self.speculative_algorithm in ("NGRAM", "NEXTN+NGRAM")

    @property
    def num_drafts(self) -> int:
        """Drafts per step that the options ask for, at most; the model may have no MTP layer."""
        if self.speculative_algorithm == "NONE":
            return 0
        if self.speculative_num_steps in (None, AUTO_DEPTH):
            return MOST_DEPTH if self.auto_depth else 2
        return self.speculative_num_steps

    @property
    def auto_depth(self) -> bool:
        """Is it chosen step by step? Costs and acceptance are those of chains that the target judges."""
        chains = self.speculative_eagle_topk == 1 and self.speculative_num_draft_tokens is None
        judged = chains and self.speculative_simulate_accept_length is None
        return judged and self.speculative_num_steps == AUTO_DEPTH and self.speculative_algorithm != "NONE"

    @property
    def speculative(self) -> SpeculativeParams:
        """What a request gets where it asks for nothing else; its depth is the scheduler's to say."""
        return SpeculativeParams(
            verify=self.speculative_verify,
            accept_threshold_single=self.speculative_accept_threshold_single,
            accept_threshold_acc=self.speculative_accept_threshold_acc,
        )

    @property
    def draft_shape(self) -> Shape:
        """Of the drafts that the options ask for."""
        topk, steps = self.speculative_eagle_topk, self.num_drafts
        nodes = self.speculative_num_draft_tokens or topk * steps + 1
        return Shape(topk, nodes - 1)


@dataclass(frozen=True)
class ServerConfig(EngineConfig):
    """What the server needs besides."""

    host: str = option("127.0.0.1", "server", "address to listen on")
    port: int = option(30000, "server", "port to listen on; 0 picks a free one")
    served_model_name: str | None = option(
        None, "server", "model name in the API; default: the last part of --model-path"
    )
    chat_template: str | None = option(
        None, "server", "Jinja file to render chats with, in place of the checkpoint's own"
    )
    tool_call_parser: str | None = option(
        None,
        "server",
        "how the model writes tool calls: deepseekv3 (V3-0324, R1-0528) or deepseekv31 (V3.1 and later); "
        "default: requests with tools are refused",
        choices=("deepseekv3", "deepseekv31"),
        words={"deepseek_v3": "deepseekv3", "deepseek_v31": "deepseekv31"},
    )
    reasoning_parser: str | None = option(
        None,
        "server",
        "parts what comes before </think> from a chat's answer, as reasoning_content; deepseek-r1: an answer "
        "begins with it, deepseek-v3: only where the prompt opens it; default: it is content",
        choices=("deepseek-r1", "deepseek-v3"),
        words={"deepseek_r1": "deepseek-r1", "deepseek_v3": "deepseek-v3"},
    )
    enable_priority_scheduling: bool = option(
        False, "server", "honour requests' priority: higher values go first, as in SGLang"
    )
    schedule_low_priority_values_first: bool = option(
        False, "server", "honour requests' priority: lower values go first, as in vLLM"
    )
    api_key: str | None = option(
        None,
        "server",
        "requests must have it (Authorization: Bearer), but for /health, /livez, /readyz, /metrics and the "
        "files of the page; "
        f"better given in the environment variable {API_KEY_VARIABLE}, which no list of processes shows",
    )
    max_queued_requests: int = option(
        512, "server", "beyond this many waiting requests: 503 with Retry-After"
    )
    max_request_bytes: int = option(32 * 2**20, "server", "a longer body is refused with 413")
    request_timeout: float | None = option(
        None, "server", "seconds that a request may take, waiting included; then 504; default: no limit"
    )
    client_timeout: float = option(
        60.0,
        "server",
        "seconds that a client may take to send its request, or to take what waits to be sent to it; then "
        "the connection is cut",
    )
    watchdog_timeout: float = option(
        300.0, "server", "seconds without a step while requests run, after which the engine is restarted"
    )
    max_engine_restarts: int = option(
        5, "server", "most restarts of an engine in ten minutes; after one more death the server exits with 1"
    )
    enable_metrics: bool = option(True, "server", "serve /metrics (Prometheus)")
    decode_log_interval: int = option(40, "server", "decode steps between two log lines; 0: none")
    log_level: str = option("info", "server", "log level", choices=("debug", "info", "warning", "error"))
    log_format: str = option(
        "text", "server", "log lines on stderr; json: one object a line", choices=("text", "json")
    )
    log_requests: bool = option(False, "server", "log every request when it comes and when it ends")
    log_requests_level: int = option(
        2,
        "server",
        "0: sizes and times; 1: sampling parameters too; 2: beginnings of texts too; 3: whole texts",
    )
    otlp_traces_endpoint: str | None = option(
        None,
        "server",
        "send a span for each request to this OpenTelemetry collector, such as "
        "http://localhost:4318/v1/traces; needs pip install 'nextn[trace]'",
    )
    shutdown_timeout: float = option(30.0, "server", "seconds that running requests get to finish on Ctrl-C")

    def check(self) -> None:
        super().check()
        if not 0 <= self.port <= 65535:
            raise ValueError(f"--port is {self.port}: it must be between 0 and 65535")
        for name, least in (("max_queued_requests", 1), ("max_request_bytes", 1)):
            if getattr(self, name) < least:
                flag = f"--{name.replace('_', '-')}"
                raise ValueError(f"{flag} is {getattr(self, name)}: it must be at least {least}")
        for name in ("decode_log_interval", "shutdown_timeout", "max_engine_restarts"):
            if getattr(self, name) < 0:
                flag = f"--{name.replace('_', '-')}"
                raise ValueError(f"{flag} is {getattr(self, name)}: it must be 0 or more")
        for name in ("request_timeout", "client_timeout", "watchdog_timeout"):
            if getattr(self, name) is not None and not getattr(self, name) > 0:
                flag = f"--{name.replace('_', '-')}"
                raise ValueError(f"{flag} is {getattr(self, name)}: it must be more than 0")
        if self.log_requests_level not in range(4):
            raise ValueError(f"--log-requests-level is {self.log_requests_level}: choose from 0, 1, 2, 3")
        if self.key is not None and not (self.key.isascii() and self.key.isprintable() and self.key.strip()):
            raise ValueError("--api-key must be printable ASCII, and not empty")

    @property
    def key(self) -> str | None:
        """That requests must have."""
        return os.environ.get(API_KEY_VARIABLE) or None if self.api_key is None else self.api_key

    @property
    def model_name(self) -> str:
        return self.served_model_name or os.path.basename(os.path.normpath(self.model_path))


# Options of SGLang and vLLM that people will try. Saying so beats argparse's "unrecognized".
REFUSED: dict[str, str] = {
    "--tp-size": "an engine is one process",
    "--tp": "an engine is one process",
    "--tensor-parallel-size": "an engine is one process",
    "--dp-size": "an engine is one process",
    "--dp": "an engine is one process",
    "--ep-size": "an engine is one process",
    "--enable-dp-attention": "an engine is one process",
    "--tokenizer-path": "the tokenizer comes from --model-path",
    "--attention-backend": "--kernel-backend chooses the kernels",
    "--trust-remote-code": "nextn never runs code from a checkpoint",
}
