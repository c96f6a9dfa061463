"""The server's options, beside those of its engine in `nextn.config`, and what nextn refuses by name."""

from __future__ import annotations

import os
from dataclasses import dataclass

from nextn.config import EngineConfig, option

API_KEY_VARIABLE = "NEXTN_API_KEY"


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
        self.need(0 <= self.port <= 65535, "port", "it must be between 0 and 65535")
        for name in ("max_queued_requests", "max_request_bytes"):
            self.need(getattr(self, name) >= 1, name, "it must be at least 1")
        for name in ("decode_log_interval", "shutdown_timeout", "max_engine_restarts"):
            self.need(getattr(self, name) >= 0, name, "it must be 0 or more")
        for name in ("request_timeout", "client_timeout", "watchdog_timeout"):
            value = getattr(self, name)
            self.need(value is None or value > 0, name, "it must be more than 0")
        self.need(self.log_requests_level in range(4), "log_requests_level", "choose from 0, 1, 2, 3")
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
