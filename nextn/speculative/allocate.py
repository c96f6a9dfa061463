"""Which drafts to make, or to verify, so that expected tokens per second are the most. Pure.

A step commits one token a request and, of each chain of drafts, all up to the first that is wrong, so

    tokens / seconds = (requests + sum of P over the drafts taken) / seconds(rows, draft passes),

P(i, j) being the probability that request i's drafts 1 .. j all hold. P falls along a chain, so the drafts of
largest P are always a set of leading parts of chains: **of all ways to verify k drafts, the k likeliest are
the best**. Verification costs by the number of rows alone, so trying every k is the exact maximum, however
the cost bends (`likeliest`). Making drafts also costs a pass for each depth that any request goes to. With
the depth limited to D the order is again by P, and limits are tried from the deepest down as long as that
gains (`best_depths`).

Requests with the same rates form a group; in a group depth j is a block of `count` equal drafts. While a
block is being taken in, tokens grow evenly, and where seconds do too the ratio goes one way only: its best is
at an end of the block or at a knot of the cost curve. So these are the only places looked at.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import truediv

from nextn.speculative.costs import StepCosts

# Drafts are made only if that promises so much more than none: estimates are not better than that.
_WORTH = 1.005


@dataclass(frozen=True, slots=True)
class Group:
    count: int
    survival: Sequence[float]  # falling; its length is the most that each request may draft


@dataclass(slots=True)
class Base:
    """What a step holds before any draft is chosen: roots, and the drafts that are not ours to choose."""

    rows: int
    tokens: float
    drafting: list[int] = field(default_factory=list)  # [j]: requests with a draft at depth j + 1 already
    extended: float = 1.0  # rows that the draft layer has to catch up with, for each request that drafts
    owed: float = 0.0  # seconds that starting to draft costs besides


@dataclass(frozen=True, slots=True)
class Allocation:
    """depths[g]: drafts for each request of group g; `more` requests of group `of` get one more."""

    depths: list[int]
    of: int
    more: int
    tokens: float
    seconds: float
    drafting: float  # of `seconds`, those of making the drafts


def best_depths(groups: Sequence[Group], base: Base, costs: StepCosts) -> Allocation:
    blocks = sorted(
        [(-p, j, g) for g, group in enumerate(groups) for j, p in enumerate(group.survival)]
    )  # at equal P the shallower one goes first
    none = _walk([], groups, base, costs)
    best, limit = none, len(max((g.survival for g in groups), key=len, default=()))
    while limit > 0:
        if blocks and len(groups) > 1:
            found = _walk([b for b in blocks if b[1] < limit], groups, base, costs)
        else:
            found = _walk(blocks, groups, base, costs)
        if best is not none and _rate(found) <= _rate(best):
            break
        best = found
        if len(groups) == 1:
            break  # every limit is a part of this walk
        limit = max(best.depths) + (best.more > 0 and best.depths[best.of] == max(best.depths)) - 1
    return best if _rate(best) > _WORTH * _rate(none) else none


def _rate(a: Allocation) -> float:
    return a.tokens / a.seconds


def _walk(
    blocks: Sequence[tuple[float, int, int]], groups: Sequence[Group], base: Base, costs: StepCosts
) -> Allocation:
    """Takes in block after block, and keeps the best place seen."""
    requests = sum(g.count for g in groups) + max(base.drafting, default=0)
    total = sum(groups[g].count for _, _, g in blocks)
    target = costs.target.upto(base.rows + total)
    draft = costs.draft.upto(requests)
    extend = costs.extend.upto(int(base.extended * requests) + 1)
    knots = costs.target.rows
    counts = base.drafting + [0] * (1 + max((j for _, j, _ in blocks), default=0))
    rows, tokens = base.rows, base.tokens
    drafting = sum(draft[n] for n in base.drafting[1:])
    if counts[0]:
        drafting += extend[int(base.extended * counts[0])]
    best = tokens / (costs.fixed + drafting + target[rows])
    at, more, best_tokens, best_drafting, best_rows = 0, 0, tokens, drafting, rows
    for i, (p, j, g) in enumerate(blocks):
        count, before = groups[g].count, counts[j]
        # whole block last: at equal rates it wins over a part of it
        stops = [count]
        if count > 1:
            stops = [k - rows for k in knots[bisect_right(knots, rows) :] if k < rows + count] + stops
        for n in stops:
            if j:
                here = drafting + draft[before + n] - draft[before]
            else:
                here = (
                    drafting + extend[int(base.extended * (before + n))] - extend[int(base.extended * before)]
                )
                here += 0.0 if before else base.owed
            rate = (tokens - n * p) / (costs.fixed + here + target[rows + n])
            if rate >= best:
                best, at, more = rate, i + (n == count), n % count
                best_tokens, best_drafting, best_rows = tokens - n * p, here, rows + n
        drafting, tokens, rows, counts[j] = here, tokens - count * p, rows + count, before + count
    depths = [0] * len(groups)
    for _, _, g in blocks[:at]:
        depths[g] += 1
    of = blocks[at][2] if more else 0
    seconds = costs.fixed + best_drafting + target[best_rows]
    return Allocation(depths, of, more, best_tokens, seconds, best_drafting)


def likeliest(
    chains: Sequence[Sequence[float]], rows: int, tokens: float, seconds: float, target: Sequence[float]
) -> list[int]:
    """How much of each chain to verify. chains: survival by depth; the step has `rows` rows and commits
    `tokens` without them, and takes `seconds` besides target[rows]. An exact maximum; more drafts where it is
    equal.

    >>> likeliest([[0.9, 0.8], [0.5, 0.1]], 2, 2.0, 0.0, [0, 1, 1, 1.1, 1.2, 1.8, 2.4])
    [2, 0]
    """
    flat = sorted([p for chain in chains for p in chain], reverse=True)
    spent = [seconds + t for t in target[rows : rows + len(flat) + 1]]
    rates = list(map(truediv, accumulate(flat, initial=tokens), spent))
    k = len(flat) - rates[::-1].index(max(rates))
    if k == len(flat):
        return [len(chain) for chain in chains]
    if k == 0:
        return [0] * len(chains)
    least = flat[k - 1]
    equal = k - flat.index(least)  # of those that are just as likely as the last one taken, so many are
    out = []
    for chain in chains:
        n = 0
        for p in chain:
            if p <= least:
                if p < least or not equal:
                    break
                equal -= 1
            n += 1
        out.append(n)
    return out
