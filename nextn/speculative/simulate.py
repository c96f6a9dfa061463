"""Acceptance as dialled, for benchmarks on weights whose drafts mean nothing. The text is nobody's choice.

SGLang has the like in an environment variable (SGLANG_SIMULATE_ACC_LEN).
"""

from __future__ import annotations

import random

from nextn.draft import Draft
from nextn.request import SamplingParams


def simulated_path(draft: Draft, length: float, params: SamplingParams, index: int) -> list[int]:
    """The nodes to accept so that a step commits `length` tokens on average, its bonus included, where the
    draft is deep enough. A function of the request's seed and of `index`, the number of its tokens so far."""
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
