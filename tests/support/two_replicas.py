"""Requests of tests to a server with two replicas or two groups."""

from __future__ import annotations

from typing import Any, Protocol

import httpx
from support.server_process import RUNNING, USED, ServerProcess

from nextn.bench.prompts import heldout_prompts

SERVE = (
    "-m", "nextn", "serve", "--port", "0", "--device", "cpu", "--threads", "1", "--kv-cache-tokens", "4096",
    "--speculative-eagle-topk", "2", "--check-integrity",
)  # fmt: skip
DRAFTS: dict[str, Any] = {"off": False, "auto": None, "trees": {"num_steps": 3}}  # a request's `speculative`
CASES = [("off", 0), ("auto", 1), ("trees", 0), ("trees", 1)]
ENDLESS = {  # it runs long enough to kill a process
    "prompt": heldout_prompts(1)[0], "max_tokens": 1500, "n": 8, "temperature": 1, "ignore_eos": True
}  # fmt: skip

Answers = list[tuple[list[Any], dict[str, Any] | None]]


def by_rank(server: ServerProcess, name: str) -> list[float]:
    metrics = server.metrics()
    return [metrics[f'{name}{{dp_rank="{rank}"}}'] for rank in range(2)]


def prompt_tokens(server: ServerProcess) -> list[float]:
    return by_rank(server, "nextn:prompt_tokens_total")


def idle(server: ServerProcess) -> bool:
    return not any(by_rank(server, RUNNING) + by_rank(server, USED) + by_rank(server, "nextn:num_queue_reqs"))


class Posts(Protocol):
    def post(self, path: str, **body: Any) -> httpx.Response: ...


def post(server: Posts, path: str = "/v1/completions", **body: Any) -> httpx.Response:
    return server.post(path, **body)


def health(server: ServerProcess) -> tuple[int, dict[str, Any]]:
    answer = httpx.get(server.url + "/health")
    return answer.status_code, answer.json()


def answer(server: Posts, case: tuple[str, int], **routed: int) -> tuple[list[Any], Any]:
    """The choices, and the drafts if they do not depend on the engine's speed (else None)."""
    drafts, temperature = case
    body = {"prompt": heldout_prompts(4), "max_tokens": 16, "temperature": temperature, "seed": 7}
    body |= {"logprobs": 2, "speculative": DRAFTS[drafts], "return_spec_tokens_details": True}
    found = post(server, **body, **routed).json()
    return found["choices"], None if drafts == "auto" else found["usage"]["spec_details"]


def answers(server: Posts, **routed: int) -> Answers:
    """One request after another, greedy and seeded, with empty caches. (Cached pages of a request without
    drafts may have no entries of the draft layer.)"""
    found = []
    for case in CASES:
        assert post(server, "/flush_cache").status_code == 200
        found.append(answer(server, case, **routed))
    return found


def check_answers(server: ServerProcess, expected: Answers) -> None:
    """Answers and drafts are those of one engine, on either rank."""
    drafted = [spec["accepted"] for _, spec in expected if spec is not None]
    assert [sum(each) > 0 for each in drafted] == [False, True, True]
    assert answers(server, routed_dp_rank=0) == answers(server, routed_dp_rank=1) == expected
