"""The server's options, in addition to its engine's options in `nextn.config`."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass

from nextn.config import EngineConfig, usable_cores
from nextn.gguf.files import gguf_name
from nextn.option import option

API_KEY_VARIABLE = "NEXTN_API_KEY"


@dataclass(frozen=True)
class ServerConfig(EngineConfig):
    """The options of a server: its engine's and its own."""

    host: str = option("127.0.0.1", "server", "address to listen on")
    port: int = option(30000, "server", "port to listen on; 0 picks a free one")
    served_model_name: str | None = option(
        None, "server", "model name in the API; default: the last part of --model-path", "--model-id"
    )
    chat_template: str | None = option(
        None, "server", "Jinja file that renders chats; default: the checkpoint's own template"
    )
    tool_call_parser: str | None = option(
        None,
        "server",
        "format of the model's tool calls: deepseekv3 (V3-0324, R1-0528), deepseekv31 (V3.1 and later), "
        "glm45 (GLM-4.5, 4.6), glm47 (GLM-4.7, GLM-5), hermes (Hermes, Qwen2.5, Qwen3; qwen3 and qwen25 mean "
        "the same) or qwen3_coder (Qwen3-Coder, Qwen3.5 and later); default: requests with tools are refused",
        choices=("deepseekv3", "deepseekv31", "glm45", "glm47", "hermes", "qwen3_coder"),
        words={
            "deepseek_v3": "deepseekv3", "deepseek_v31": "deepseekv31", "glm": "glm45", "qwen": "hermes",
            "qwen25": "hermes", "qwen3": "hermes", "qwen3_xml": "qwen3_coder",
        },
    )  # fmt: skip
    reasoning_parser: str | None = option(
        None,
        "server",
        "return the text before </think> as reasoning_content. deepseek-r1, qwen3-thinking: every answer "
        "begins with reasoning; deepseek-v3, glm45 (GLM-4.5 and later), qwen3: only if the prompt or answer "
        "opens it; default: reasoning is content",
        choices=("deepseek-r1", "deepseek-v3", "glm45", "qwen3", "qwen3-thinking"),
        words={"deepseek_r1": "deepseek-r1", "deepseek_v3": "deepseek-v3", "glm47": "glm45"},
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
        "key that requests must send (Authorization: Bearer); /health, /livez, /readyz, /metrics and the "
        f"page's files need none. The environment variable {API_KEY_VARIABLE} is safer: it does not "
        "appear in a list of processes",
    )
    max_queued_requests: int = option(
        512,
        "server",
        "maximum waiting requests; further requests get 503 with Retry-After",
        "--max-num-queued-reqs",
        "--request-queue-size",
    )
    max_request_bytes: int = option(32 * 2**20, "server", "maximum bytes of a body; a longer one gets 413")
    request_timeout: float | None = option(
        None, "server", "maximum seconds of a request, waiting included; then it gets 504; default: no limit"
    )
    client_timeout: float = option(
        60.0,
        "server",
        "maximum seconds that a client may take to send its request, or to receive output that is ready; "
        "then the connection is closed",
    )
    watchdog_timeout: float = option(
        300.0, "server", "restart the engine if it makes no step for this many seconds while it has requests"
    )
    max_engine_restarts: int = option(
        5,
        "server",
        "maximum restarts of the engine in ten minutes; if it dies once more, the server exits with 1",
    )
    enable_metrics: bool = option(True, "server", "serve /metrics for Prometheus")
    decode_log_interval: int = option(
        40, "server", "decode steps from one log line about load and speed to the next; 0: none"
    )
    log_level: str = option("info", "server", "log level", choices=("debug", "info", "warning", "error"))
    log_format: str = option(
        "text", "server", "format of log lines on stderr; json: one object per line", choices=("text", "json")
    )
    log_requests: bool = option(False, "server", "log every request when it arrives and when it ends")
    log_requests_level: int = option(
        2,
        "server",
        "what is logged about a request. 0: sizes and times; 1: also sampling parameters; 2: also the "
        "beginning of prompt and text; 3: the whole prompt and text",
    )
    otlp_traces_endpoint: str | None = option(
        None,
        "server",
        "send traces of each request to this OpenTelemetry collector, such as "
        "http://localhost:4318/v1/traces; needs pip install 'nextn[trace]'",
    )
    profile_steps: int = option(
        0,
        "server",
        "record where the time of the first N steps with requests goes, and write a trace into --profile-dir "
        "(docs/performance.md); 0: none",
    )
    profile_dir: str | None = option(
        None,
        "server",
        "folder for traces of --profile-steps and, by default, of /start_profile. Without it, traces of "
        "/start_profile go to the folder NEXTN_PROFILE_DIR, or else to the folder for temporary files",
    )
    shutdown_timeout: float = option(
        30.0, "server", "on SIGTERM or Ctrl-C, seconds that running requests have to finish"
    )

    enable_dp_attention: bool = option(
        False,
        "parallelism",
        "--tp-size ranks in --dp-size groups: each group serves its own requests with its own KV cache, "
        "attention is tensor-parallel inside it, the experts are shared by all ranks",
    )

    dp_size: int = option(
        1,
        "replicas",
        "engine processes behind the port, each with the whole model, a KV pool of its own and, by default, "
        "its part of the usable cores; on GPUs one for each. With --enable-dp-attention: the groups of ranks",
        "--dp",
        "--data-parallel-size",
    )
    load_balance_method: str = option(
        "prefix",
        "replicas",
        "which replica a request goes to. prefix: the one that was sent most of the prompt's beginning "
        "before, unless it has much more to do than another; total_tokens, total_requests: the one with the "
        "fewest tokens, or requests; round_robin: each in turn",
        choices=("prefix", "total_tokens", "total_requests", "round_robin"),
        words={"auto": "prefix", "minimum_tokens": "total_tokens", "shortest_queue": "total_requests"},
    )

    disaggregation_mode: str = option(
        "null",
        "disaggregation",
        "which part of requests from a gateway this server computes (docs/disaggregation.md). prefill: "
        "prompts, whose KV pages decode servers fetch; decode: answers; null: everything. A request that was "
        "not split by a gateway is always computed completely",
        choices=("null", "prefill", "decode"),
        words={"none": "null"},
    )
    disaggregation_bootstrap_port: int = option(
        8998,
        "disaggregation",
        "port of a prefill server, on --host, where decode servers ask which engine has a request; 0 picks a "
        "free one",
    )
    disaggregation_transfer_port: int = option(
        0,
        "disaggregation",
        "of a prefill server: where decode servers fetch pages from its first engine; other replicas use the "
        "ports after it; 0: free ones",
        "--transfer-listen-port",
    )
    disaggregation_transfer_backend: str = option(
        "tcp",
        "disaggregation",
        "how KV pages are transferred. tcp: over sockets; shm: through shared memory, between servers on one "
        "machine; nixl: by the library NIXL, over RDMA if available",
        choices=("tcp", "shm", "nixl"),
    )
    disaggregation_fallback: str = option(
        "on",
        "disaggregation",
        "what a decode server does if a prefill server fails. on: it computes the prompt itself, with the "
        "same text; off: the request ends in an error",
        choices=("on", "off"),
    )
    disaggregation_timeout: float = option(
        10.0,
        "disaggregation",
        "seconds that a server waits for the other half of a request; also the time after which a server "
        "that does not answer counts as dead",
    )

    def check(self) -> None:
        super().check()
        for name in ("port", "disaggregation_bootstrap_port", "disaggregation_transfer_port"):
            self.need(0 <= getattr(self, name) <= 65535, name, "it must be between 0 and 65535")
        for name in ("max_queued_requests", "max_request_bytes", "dp_size"):
            self.need(getattr(self, name) >= 1, name, "it must be at least 1")
        if self.attention_dp > 1:
            self._check_groups()
        elif self.dp_size > 1 and self.nnodes > 1:
            raise ValueError(
                f"--dp-size {self.dp_size} with --nnodes {self.nnodes}: the replicas of one server are on "
                "one machine; start a server on each, and a gateway before them (docs/replicas.md)"
            )
        for name in ("decode_log_interval", "shutdown_timeout", "max_engine_restarts", "profile_steps"):
            self.need(getattr(self, name) >= 0, name, "it must be 0 or more")
        for name in ("request_timeout", "client_timeout", "watchdog_timeout"):
            value = getattr(self, name)
            self.need(value is None or value > 0, name, "it must be more than 0")
        if self.profile_steps and self.profile_dir is None:
            raise ValueError(
                f"--profile-steps {self.profile_steps} needs --profile-dir, where the trace goes"
            )
        self._check_disaggregation()
        seconds = self.disaggregation_timeout
        self.need(0.1 <= seconds <= 3600, "disaggregation_timeout", "it must be between 0.1 and 3600")
        self.need(self.log_requests_level in range(4), "log_requests_level", "choose from 0, 1, 2, 3")
        if self.key is not None and not (self.key.isascii() and self.key.isprintable() and self.key.strip()):
            raise ValueError("--api-key must be printable ASCII, and not empty")

    def _check_disaggregation(self) -> None:
        if self.disaggregation_mode == "null":
            return
        mode = f"--disaggregation-mode {self.disaggregation_mode}"
        if self.distributed_executor_backend == "ray":
            raise ValueError(f"{mode} with Ray: the ranks must be on this machine; leave out one of them")
        if self.nnodes > 1:
            raise ValueError(
                f"{mode} and --nnodes {self.nnodes}: the ranks must be on this machine; leave out one of them"
            )
        if self.disaggregation_mode == "prefill":
            taken = self.port != 0 and self.port == self.disaggregation_bootstrap_port
            self.need(not taken, "disaggregation_bootstrap_port", "it must differ from --port")

    def _check_groups(self) -> None:
        both = f"--enable-dp-attention with --dp-size {self.dp_size}"
        if self.distributed_executor_backend == "ray":
            raise ValueError(f"{both}: Ray does not place groups of ranks; leave out one of them")
        self.need(
            self.world_size % self.dp_size == 0,
            "dp_size",
            f"with --enable-dp-attention it must divide --tp-size, which is {self.world_size}, all groups' "
            "ranks together; change one of them, or leave out --enable-dp-attention for replicas",
        )

    @property
    def attention_dp(self) -> int:
        """Number of groups of ranks that share the experts, each with its own requests; 1: no groups."""
        return self.dp_size if self.enable_dp_attention else 1

    @property
    def key(self) -> str | None:
        """The key that requests must send; None if no key is needed."""
        return os.environ.get(API_KEY_VARIABLE) or None if self.api_key is None else self.api_key

    @property
    def capacity(self) -> int:
        """Maximum number of choices that run and wait, over all replicas."""
        return self.dp_size * self.max_running_requests + self.max_queued_requests

    def of_replica(self) -> ServerConfig:
        """The options of one replica's or one group's engine. Each of its ranks gets its share of the
        cores."""
        if self.dp_size == 1:
            return self
        ranks = len(self.own_ranks) if self.attention_dp > 1 else self.dp_size * self.tp_size
        threads = self.threads or max(1, usable_cores() // ranks)
        if self.attention_dp == 1:
            return dataclasses.replace(self, threads=threads)
        given = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return GroupConfig(**given | {"threads": threads, "tp_size": self.tp_size // self.dp_size})

    @property
    def model_name(self) -> str:
        path = os.path.normpath(self.model_path)
        return self.served_model_name or gguf_name(path) or os.path.basename(path)


@dataclass(frozen=True)
class GroupConfig(ServerConfig):
    """The options of one group of --enable-dp-attention. `tp_size` is the number of its own ranks, `ep_size`
    the number of shards of all groups."""

    @property
    def world_size(self) -> int:
        return self.tp_size * self.attention_dp
