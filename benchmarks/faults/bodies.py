"""Malformed bodies of requests: valid ones with random errors, and bodies that are not JSON."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

VALID: dict[str, dict[str, Any]] = {
    "/v1/completions": {
        "prompt": "import os", "model": None, "max_tokens": 4, "temperature": 0.5, "top_p": 0.9, "top_k": 5,
        "min_p": 0.1, "n": 1, "seed": 3, "stop": ["x"], "stream": False, "echo": False, "logprobs": 1,
        "frequency_penalty": 0.1, "presence_penalty": 0.1, "repetition_penalty": 1.1, "ignore_eos": True,
        "stop_token_ids": [5], "min_tokens": 1, "speculative": {"num_steps": 2, "verify": "exact"},
        "stream_options": {"include_usage": True}, "return_spec_tokens_details": True,
    },
    "/v1/chat/completions": {
        # Both limits are given. A chat that loses its only limit would run to the end of the context.
        "messages": [{"role": "user", "content": "hi"}], "max_completion_tokens": 4, "max_tokens": 4,
        "temperature": 0,
        "top_logprobs": 2, "logprobs": True, "stream": False, "seed": 1, "stop": "x", "n": 2,
    },
    "/generate": {
        "text": "import os", "stream": False, "return_logprob": True, "logprob_start_len": 0, "rid": "a",
        "top_logprobs_num": 1, "sampling_params": {"max_new_tokens": 4, "temperature": 0.5, "n": 1},
    },
    "/set_internal_state": {"server_args": {"speculative_num_steps": 2}},
}  # fmt: skip
ODD: list[Any] = [
    None, True, False, 0, 1, -1, 2, 17, 2**31, 2**63, 2**64, -(2**64), 10**40, 0.5, -0.0, 1e308, 1e-320,
    float("nan"), float("inf"), "", "x", "0", "\x00", "\ud800", "€" * 50, "x" * 5000, [], [[[]]], [None],
    [0], [-1], [5, 6], [10**40], ["", "x"], ["x"] * 700, {}, {"": None}, {"a": {"b": {}}}, [{}], [True],
    {"role": "user"}, [{"role": "user", "content": [{"type": "text"}]}],
    [{"role": 5, "content": 5}],
]  # fmt: skip


def malformed(rng: random.Random) -> tuple[str, bytes]:
    """Returns a path and a malformed body for it."""
    path = rng.choice(list(VALID))
    kind = rng.random()
    if kind < 0.05:
        return path, rng.randbytes(rng.randrange(200))
    if kind < 0.1:
        return path, b"[" * rng.randrange(1, 100_000)
    if kind < 0.15:
        return path, json.dumps(rng.choice(ODD)).encode()
    body = json.loads(json.dumps(VALID[path]))
    for _ in range(rng.randrange(1, 4)):
        spoil(body, rng)
    data = json.dumps(body).encode()
    if kind < 0.25:
        data = data[: rng.randrange(len(data))]
    elif kind < 0.35:
        data = bytearray(data)
        data[rng.randrange(len(data))] = rng.randrange(256)
    return path, bytes(data)


def spoil(body: dict[str, Any], rng: random.Random) -> None:
    inside = [value for value in body.values() if isinstance(value, dict) and value]
    if inside and rng.random() < 0.4:
        return spoil(rng.choice(inside), rng)
    name = rng.choice([*body, "unknown", ""])
    if rng.random() < 0.1:
        body.pop(name, None)
    else:
        body[name] = copy.deepcopy(rng.choice(ODD))
    return None
