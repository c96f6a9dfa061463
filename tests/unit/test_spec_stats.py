"""What is counted of speculation: sums hold however the counts are cut and put together."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from nextn.stats import SpecStats

steps = st.lists(
    st.integers(0, 6).flatmap(lambda proposed: st.tuples(st.just(proposed), st.integers(0, proposed))),
    max_size=20,
)


def counted(many: list[tuple[int, int]]) -> SpecStats:
    spec = SpecStats()
    for proposed, accepted in many:
        spec.add(proposed, accepted, accepted + 1)
    return spec


@given(steps)
def test_the_lists_agree(many: list[tuple[int, int]]) -> None:
    spec = counted(many)
    assert sum(spec.histogram) == spec.verify_steps == len(many)
    assert sum(i * n for i, n in enumerate(spec.histogram)) == sum(spec.accepted)
    assert spec.committed == sum(spec.accepted) + len(many)
    assert spec.accepted == [sum(a > j for _, a in many) for j in range(len(spec.accepted))]
    assert spec.accept_rate == (sum(a for _, a in many) / (sum(p for p, _ in many) or 1))


@given(steps, steps)
def test_merge_and_since(first: list[tuple[int, int]], second: list[tuple[int, int]]) -> None:
    early, late, both = counted(first), counted(second), counted(first + second)
    merged = counted(first)
    merged.merge(late)
    assert merged == both
    difference = both.since(early)
    assert (difference.verify_steps, difference.committed) == (late.verify_steps, late.committed)
    for mine, expected in zip(difference._lists(), late._lists(), strict=True):
        assert mine == expected + [0] * (len(mine) - len(expected))


@given(steps)
def test_it_crosses_the_socket(many: list[tuple[int, int]]) -> None:
    spec = counted(many)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(spec), type=SpecStats) == spec
