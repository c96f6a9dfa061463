"""Checks the values of `nextn.request.SamplingParams` and `SpeculativeParams`."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

from nextn.draft import MAX_DRAFTS

MAX_STOP_TOKENS = 64
VERIFY_MODES = ("exact", "rejection", "block", "typical")
ALL_TOKENS = 2**31  # bound on token ids if the vocabulary is not known


def number(value: object, least: float, most: float) -> bool:
    """Whether `value` is a number from `least` to `most`. False for NaN."""
    return isinstance(value, Real) and least <= value <= most  # type: ignore[operator]


def whole(value: object, least: int, most: float = math.inf) -> bool:
    """Whether `value` is a whole number from `least` to `most`."""
    return isinstance(value, Integral) and least <= value <= most  # type: ignore[operator]


def check_speculative(p: Any) -> None:
    """Raises ValueError with the field's name, its value and the allowed values."""

    def need(ok: bool, name: str, rule: str) -> None:
        if not ok:
            raise ValueError(f"speculative.{name} is {getattr(p, name)!r}; it must be {rule}")

    steps = p.num_steps
    need(steps is None or whole(steps, 0, MAX_DRAFTS), "num_steps", f"between 0 (off) and {MAX_DRAFTS}")
    need(p.verify in (None, *VERIFY_MODES), "verify", f"one of {', '.join(VERIFY_MODES)}")
    for name in ("accept_threshold_single", "accept_threshold_acc"):
        value = getattr(p, name)
        need(value is None or number(value, 0.0, 1.0), name, "between 0 and 1")


def check_sampling(p: Any, vocab_size: int | None) -> None:
    """Raises ValueError with the field's name, its value and the allowed range."""

    def need(ok: bool, name: str, rule: str) -> None:
        if not ok:
            raise ValueError(f"{name} is {getattr(p, name)!r}; it must be {rule}")

    top = ALL_TOKENS if vocab_size is None else vocab_size
    need(whole(p.max_tokens, 0), "max_tokens", "at least 0")
    need(whole(p.min_tokens, 0, p.max_tokens), "min_tokens", "between 0 and max_tokens")
    need(number(p.temperature, 0.0, 100.0), "temperature", "between 0 and 100")
    need(whole(p.top_k, -1), "top_k", "-1 (all) or a positive count")
    need(number(p.top_p, 0.0, 1.0) and p.top_p > 0.0, "top_p", "in (0, 1]")
    need(number(p.min_p, 0.0, 1.0), "min_p", "in [0, 1]")
    repetition = p.repetition_penalty
    need(number(repetition, 0.0, 2.0) and repetition > 0.0, "repetition_penalty", "in (0, 2]")
    need(number(p.frequency_penalty, -2.0, 2.0), "frequency_penalty", "in [-2, 2]")
    need(number(p.presence_penalty, -2.0, 2.0), "presence_penalty", "in [-2, 2]")
    need(whole(p.seed, 0, 2**64 - 1), "seed", "in [0, 2**64)")
    need(whole(p.stream, 0, 2**32 - 1), "stream", "in [0, 2**32)")
    need(len(p.stop_token_ids) <= MAX_STOP_TOKENS, "stop_token_ids", f"at most {MAX_STOP_TOKENS} ids")
    need(all(whole(t, 0, top - 1) for t in p.stop_token_ids), "stop_token_ids", "ids inside the vocabulary")
    need(all(whole(t, 0, top - 1) for t in p.logit_bias), "logit_bias", "of ids inside the vocabulary")
    need(all(number(b, -100.0, 100.0) for b in p.logit_bias.values()), "logit_bias", "between -100 and 100")
    if p.constraint is not None:
        p.constraint.check()
    check_speculative(p.speculative)
    for name in ("logprobs", "prompt_logprobs"):
        value = getattr(p, name)
        need(value is None or whole(value, 0), name, "None or at least 0")
