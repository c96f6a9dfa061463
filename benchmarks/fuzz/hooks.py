"""Hooks that schemathesis loads (api.py). The server refuses most of the data that the schema allows, for
reasons that a schema cannot express. So half of these bodies are changed into ones that it answers."""

from __future__ import annotations

import os
import random
from typing import Any

import schemathesis
from schemathesis import GenerationMode

VOCABULARY = 4096  # of the fake model
NEEDED = ("prompt", "messages", "tokens", "server_args")
RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0, 2), "top_p": (0.1, 1), "min_p": (0, 1), "top_k": (-1, 100), "n": (1, 3),
    "frequency_penalty": (-2, 2), "presence_penalty": (-2, 2), "repetition_penalty": (0.5, 2),
    "max_tokens": (1, 8), "max_completion_tokens": (1, 8), "max_new_tokens": (1, 8), "min_tokens": (0, 1),
    "min_new_tokens": (0, 1), "best_of": (3, 4), "top_logprobs": (0, 5), "top_logprobs_num": (0, 5),
    "logprobs": (0, 5), "logprob_start_len": (-1, 1),
}  # fmt: skip
LIMITS = {"prompt": "max_tokens", "messages": "max_completion_tokens"}


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: dict[str, Any]) -> None:
    positive = case.meta is not None and case.meta.generation.mode is GenerationMode.POSITIVE
    if positive and isinstance(case.body, dict):
        rng = random.Random(repr(case.body))
        if rng.random() < 0.5:
            case.body = answerable(case.body, case.path == "/generate", rng)
    if isinstance(case.body, dict) and os.path.isabs(str(case.body.get("output_dir"))):
        case.body = {**case.body, "output_dir": os.devnull}  # do not make folders on this machine


def answerable(body: dict[str, Any], native: bool, rng: random.Random) -> dict[str, Any]:
    """Changes a body into one that the server answers. `native`: a body for /generate, whose lists must have
    as many entries as there are prompts."""
    kept = {name: within(name, value) for name, value in body.items() if name in NEEDED or rng.random() < 0.3}
    for name in ("model", "logit_bias", "priority", "tool_choice", "routed_dp_rank", "data_parallel_rank"):
        kept.pop(name, None)
    if "messages" in kept:
        kept["messages"] = [{"role": "user", "content": "hi"}]
    for needed, limit in LIMITS.items():
        if needed in kept:
            for other in LIMITS.values():  # two different limits are refused
                kept.pop(other, None)
            kept[limit] = rng.randint(1, 8)
    if native:
        kept = {name: value for name, value in kept.items() if not isinstance(value, list)}
        kept.pop("input_ids", None)
        kept |= {"text": "x", "sampling_params": {"max_new_tokens": 4, "temperature": rng.random()}}
    return kept


def within(name: str, value: Any) -> Any:
    """The value, with numbers moved into their range and token ids into the vocabulary."""
    if isinstance(value, bool):
        return value
    if name in RANGES and isinstance(value, (int, float)):
        low, high = RANGES[name]
        return type(value)(min(max(value, low), high))
    if isinstance(value, list):
        return [within("", each) for each in value]
    return value % VOCABULARY if isinstance(value, int) and name == "" else value
