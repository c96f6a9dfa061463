"""Which drafts to make, so that expected tokens per second are the most. Pure.

A step commits one token a request and, of each chain of drafts, all up to the first that is wrong, so

    tokens / seconds = (requests + sum of P over the drafts made) / seconds(rows, draft passes),

P(i, j) being the probability that request i's drafts 1 .. j all hold. P falls along a chain, so the drafts of
largest P are always a set of leading parts of chains: of all ways to verify k drafts, the k likeliest are the
best. Making drafts also costs a pass for each depth that any request goes to. With the depth limited to D the
order is again by P, and limits are tried from the deepest down as long as that gains.

Requests with the same rates form a group and get the same depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from nextn.speculative.costs import StepCosts
from nextn.speculative.measured import between

# Drafts are made only if that promises so much more than none, and more of them if it promises so much more
# than fewer: estimates are not better than that.
_WORTH, _WORTH_MORE = 1.005, 1.002


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
    """depths[g]: drafts of each request of group g. tokens, seconds: expected of a step. mean: drafts a
    request, those included that were not ours to choose."""

    depths: Sequence[int]
    tokens: float
    seconds: float
    mean: float

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


class Planner:
    """The drafts of one batch: what is tried is tried for the same groups, costs and factors."""

    def __init__(
        self, groups: Sequence[Group], base: Base, costs: StepCosts, factors: Sequence[float]
    ) -> None:
        """factors: by which steps with 0, 1, ... drafts a request miss what the costs say of them."""
        self.groups, self.base, self.costs, self.factors = groups, base, costs, list(factors)
        pinned = sum(base.drafting)
        self.requests = sum(g.count for g in groups) + max(base.drafting, default=0)
        # rows: roots and pinned drafts; a pinned request at depth 0 is among the roots only
        self.roots = base.rows - pinned
        self.always = costs.fixed + costs.request(self.roots)

    def best(self) -> Allocation:
        order = sorted(
            [(-p, j, g) for g, group in enumerate(self.groups) for j, p in enumerate(group.survival)]
        )  # at equal P the shallower one goes first
        none = best = self.of([0] * len(self.groups))
        limit = max((len(g.survival) for g in self.groups), default=0)
        while limit > 0:
            found = self._walk([b for b in order if b[1] < limit])
            if found.rate > best.rate:
                best = found
            elif best is not none:
                break
            if len(self.groups) == 1 or not any(found.depths):
                break  # every limit is a part of this walk
            limit = min(limit, max(found.depths)) - 1
        return best if best.rate > _WORTH * none.rate else none

    def of(self, depths: Sequence[int]) -> Allocation:
        """What that allocation comes to."""
        deepest = max(depths, default=0)
        counts = self.base.drafting + [0] * (deepest - len(self.base.drafting))
        rows, tokens = self.base.rows, self.base.tokens
        for group, depth in zip(self.groups, depths, strict=True):
            rows += group.count * depth
            tokens += group.count * sum(group.survival[:depth])
            for j in range(depth):
                counts[j] += group.count
        seconds = self.always + self.costs.target(rows) + sum(map(self.costs.draft, counts[1:]))
        if counts and counts[0]:
            seconds += self.costs.extend(int(self.base.extended * counts[0]))
            seconds += 0.0 if self.base.drafting else self.base.owed
        mean = (rows - self.roots) / max(1, self.roots)
        return Allocation(depths, tokens, seconds * between(self.factors, mean), mean)

    def _walk(self, blocks: Sequence[tuple[float, int, int]]) -> Allocation:
        """Takes in block after block, and stops where that was best."""
        groups, base, costs = self.groups, self.base, self.costs
        target = costs.target.upto(base.rows + sum(groups[g].count for _, _, g in blocks))
        draft = costs.draft.upto(self.requests)
        extend = costs.extend.upto(int(base.extended * self.requests) + 1)
        counts = base.drafting + [0] * (1 + max((j for _, j, _ in blocks), default=0))
        rows, tokens, roots = base.rows, base.tokens, max(1, self.roots)
        drafting = sum(draft[n] for n in base.drafting[1:])
        if counts[0]:
            drafting += extend[int(base.extended * counts[0])]
        rates = []
        for p, j, g in blocks:
            count, before = groups[g].count, counts[j]
            if j:
                drafting += draft[before + count] - draft[before]
            else:
                drafting += extend[int(base.extended * (before + count))]
                drafting += base.owed if not before else -extend[int(base.extended * before)]
            rows, tokens, counts[j] = rows + count, tokens - count * p, before + count
            seconds = self.always + drafting + target[rows]
            rates.append(tokens / (seconds * between(self.factors, (rows - self.roots) / roots)))
        best = max(rates, default=0.0)
        at = next((i for i, rate in enumerate(rates) if rate >= best / _WORTH_MORE), -1)
        depths = [0] * len(groups)
        for _, _, g in blocks[: at + 1]:
            depths[g] += 1
        return self.of(depths)
