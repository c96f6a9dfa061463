"""Computes results from replies: speeds, agreement of texts, agreement of acceptance. Pure functions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from protocol import Reply, Spec

AGREE_TOKENS = 8  # a peer whose texts differ earlier, for most prompts, does not compute the same model
Z_99 = 2.576  # two-sided, 99 %


def prefill_speed(prompt_tokens: int, replies: Sequence[Reply]) -> float:
    """Prompt tokens/s of several prompts of `prompt_tokens` tokens, one after another."""
    return prompt_tokens * len(replies) / sum(r.seconds for r in replies)


def decode_speed(first: Sequence[Reply], full: Sequence[Reply]) -> float:
    """Tokens/s after the first token, from the same calls with one token (`first`) and with all (`full`).

    All work around a step counts, for every engine in the same way. The time of the prompts cancels. Raises
    ValueError if the calls with more tokens took no longer, which can happen on a busy machine.
    """
    seconds = sum(r.seconds for r in full) - sum(r.seconds for r in first)
    if seconds <= 0:
        raise ValueError("the calls with more tokens took no longer; the machine was not idle")
    tokens = sum(len(t) for r in full for t in r.tokens) - sum(len(t) for r in first for t in r.tokens)
    return tokens / seconds


def leading(reference: Sequence[int], tokens: Sequence[int]) -> int:
    """Number of equal tokens at the beginning."""
    for i, (a, b) in enumerate(zip(reference, tokens, strict=False)):
        if a != b:
            return i
    return min(len(reference), len(tokens))


@dataclass(frozen=True)
class Agreement:
    """Agreement of greedy texts with the reference's, up to the reference's first end token. After an ignored
    end token, engines behave differently."""

    prompts: int
    equal: float  # share of prompts that agree to the last token
    equal_first: float  # share of prompts that agree over the first AGREE_TOKENS tokens
    tokens: float  # share of tokens before the first difference of each prompt

    @property
    def comparable(self) -> bool:
        return self.equal_first >= 0.5


def agreement(
    reference: Iterable[Sequence[int]], texts: Iterable[Sequence[int]], ends: frozenset[int]
) -> Agreement:
    """Compares texts with the reference's. ends: end tokens. Raises ValueError if no reference text has a
    token before its end."""
    pairs: list[tuple[int, int]] = []  # (leading, length)
    for want, got in zip(reference, texts, strict=True):
        length = next((i for i, token in enumerate(want) if token in ends), len(want))
        if length:
            pairs.append((leading(want[:length], got), length))
    if not pairs:
        raise ValueError("every reference text ends at once: nothing to compare; use other prompts")
    return Agreement(
        prompts=len(pairs),
        equal=statistics.fmean(same == length for same, length in pairs),
        equal_first=statistics.fmean(same >= min(AGREE_TOKENS, length) for same, length in pairs),
        tokens=sum(same for same, _ in pairs) / sum(length for _, length in pairs),
    )


def added(specs: Iterable[Spec | None]) -> Spec | None:
    """The sum of all specs; None if there are none."""
    found = [s for s in specs if s is not None]
    if not found:
        return None
    depths = max(len(s.proposed) for s in found)
    proposed, accepted = [0] * depths, [0] * depths
    for s in found:
        for j, (p, a) in enumerate(zip(s.proposed, s.accepted, strict=True)):
            proposed[j] += p
            accepted[j] += a
    return Spec(proposed, accepted, all(s.by_depth for s in found))


@dataclass(frozen=True)
class Depth:
    """Acceptance at one draft depth, of two engines on the same texts."""

    depth: int
    ours: float
    theirs: float
    error: float  # standard error of the difference, if the two were independent
    agrees: bool  # the difference is within the 99 % interval


def compare_acceptance(ours: Spec, theirs: Spec) -> list[Depth]:
    """Compares acceptance at each depth: accepted over proposed drafts, over all drafts of that depth."""
    if not (ours.by_depth and theirs.by_depth):
        return []
    found: list[Depth] = []
    rows = zip(ours.proposed, ours.accepted, theirs.proposed, theirs.accepted, strict=False)
    for depth, (n, a, m, b) in enumerate(rows, 1):
        if not (n and m):
            continue
        pooled = (a + b) / (n + m)
        error = math.sqrt(pooled * (1 - pooled) * (1 / n + 1 / m))
        difference = abs(a / n - b / m)
        found.append(Depth(depth, a / n, b / m, error, difference <= Z_99 * error))
    return found


@dataclass(frozen=True)
class Best:
    """For one measure: our best variant and the best variant of the peers."""

    ours: str
    our_speed: float
    peer: str
    peer_speed: float

    @property
    def ratio(self) -> float:
        return self.our_speed / self.peer_speed


def best(speeds: Mapping[str, float], is_ours: Mapping[str, bool]) -> Best | None:
    """The best of both sides; None if one side has no speed."""
    mine = [(speed, name) for name, speed in speeds.items() if is_ours[name]]
    theirs = [(speed, name) for name, speed in speeds.items() if not is_ours[name]]
    if not (mine and theirs):
        return None
    (our_speed, ours), (peer_speed, peer) = max(mine), max(theirs)
    return Best(ours, our_speed, peer, peer_speed)
