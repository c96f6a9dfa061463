"""Simulated acceptance, for benchmarks with random weights. The text is then meaningless.

SGLang has the same in an environment variable (SGLANG_SIMULATE_ACC_LEN).
"""

from __future__ import annotations

import random

from nextn.draft import Draft
from nextn.request import SamplingParams


def simulated_path(draft: Draft, length: float, params: SamplingParams, index: int) -> list[int]:
    """The nodes to accept, so that a step commits `length` tokens on average, including the bonus token, if
    the draft is deep enough. A function of the request's seed and of `index`, its number of tokens so far."""
    whole = int(length)
    drawn = random.Random(f"{params.seed} {params.stream} {index}").random()
    max_accepted = whole - 1 + (drawn < length - whole)
    path: list[int] = []
    last = -1
    for node in range(len(draft)):
        if len(path) < max_accepted and draft.parent(node) == last:
            path.append(node)
            last = node
    return path
