"""What tests ask a server of two replicas."""

from __future__ import annotations

from typing import Any

import httpx
from support.server_process import RUNNING, USED, ServerProcess


def by_rank(server: ServerProcess, name: str) -> list[float]:
    metrics = server.metrics()
    return [metrics[f'{name}{{dp_rank="{rank}"}}'] for rank in range(2)]


def prompt_tokens(server: ServerProcess) -> list[float]:
    return by_rank(server, "nextn:prompt_tokens_total")


def idle(server: ServerProcess) -> bool:
    return not any(by_rank(server, RUNNING) + by_rank(server, USED) + by_rank(server, "nextn:num_queue_reqs"))


def post(server: ServerProcess, path: str = "/v1/completions", **body: Any) -> httpx.Response:
    return httpx.post(server.url + path, json=body, timeout=60)


def health(server: ServerProcess) -> tuple[int, dict[str, Any]]:
    answer = httpx.get(server.url + "/health")
    return answer.status_code, answer.json()
