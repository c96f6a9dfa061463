"""Which replica a request goes to."""

from __future__ import annotations

import asyncio

import pytest
from support.played_replicas import played_replicas

from nextn.constraint import Constraint
from nextn.request import SamplingParams
from nextn.server.process.dispatch import MATCHED, groups_of
from nextn.server.process.messages import NewRequest
from nextn.server.process.prefix_index import BLOCK
from nextn.server.process.replicas import Replicas


def request(rid: str, tokens: list[int], group: int | None = 0, **params: object) -> NewRequest:
    return NewRequest(rid, tokens, SamplingParams(**params), group=group)  # type: ignore[arg-type]


def send(replicas: Replicas, rid: str, tokens: list[int], rank: int | None = None) -> int:
    """Returns where it went."""
    before = [client.active for client in replicas.ranks]
    replicas.submit([request(rid, tokens)], asyncio.Queue(), rank=rank)
    after = [client.active for client in replicas.ranks]
    (at,) = (i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b)
    return at


def prompt(number: int, blocks: int) -> list[int]:
    """Prompts with different numbers share nothing."""
    return [number * 10_000 + i for i in range(blocks * BLOCK)]


def test_round_robin() -> None:
    replicas, played = played_replicas(3, "round_robin")
    assert [send(replicas, str(i), [1] * i) for i in range(1, 7)] == [0, 1, 2, 0, 1, 2]
    played[1].client.detach("dead")
    assert [send(replicas, f"{i}b", [1]) for i in range(4)] == [0, 2, 0, 2]
    played[1].restart()
    assert [send(replicas, f"{i}c", [1]) for i in range(3)] == [0, 1, 2]


def test_total_requests() -> None:
    replicas, _ = played_replicas(2, "total_requests")
    assert [send(replicas, "a", [1] * 900), send(replicas, "b", [1])] == [0, 1]
    replicas.abort("a")
    assert [send(replicas, "c", [1]), send(replicas, "d", [1])] == [0, 1]


def test_total_tokens() -> None:
    replicas, _ = played_replicas(2, "total_tokens")
    assert send(replicas, "long", [1] * 100) == 0
    assert [send(replicas, f"{i}", [1] * 30) for i in range(3)] == [1, 1, 1]
    assert send(replicas, "even", [1] * 20) == 1
    assert send(replicas, "next", [1] * 20) == 0


def test_equal_replicas_take_turns() -> None:
    for method in ("total_tokens", "total_requests", "prefix"):
        replicas, _ = played_replicas(3, method)
        found = []
        for i in range(4):
            found.append(send(replicas, str(i), prompt(i, 2)))
            replicas.abort(str(i))
        assert found == [0, 1, 2, 0]


def test_shared_prefixes_stick_together() -> None:
    replicas, _ = played_replicas(2)
    first = {number: send(replicas, f"{number}", prompt(number, 4)) for number in range(4)}
    assert sorted(first.values()) == [0, 0, 1, 1]
    for number in (3, 0, 2, 1, 0, 3):
        replicas.end("")
        assert send(replicas, f"{number}x", [*prompt(number, 4), 5, 6]) == first[number]


def test_prefix_gives_way_to_load() -> None:
    """The first replica is preferred until its load is more than MATCHED times the prefix above the other's.
    From then on both know the prefix, and share."""
    replicas, _ = played_replicas(2)
    shared = prompt(1, 4)
    places = [send(replicas, str(i), [*shared, i]) for i in range(12)]
    before = places.index(1)
    assert places[:before] == [0] * before
    assert (before - 1) * (len(shared) + 1) <= MATCHED * len(shared) < before * (len(shared) + 1)
    assert set(places[before + 1 : before + 4]) == {1}
    loads = [client.tokens for client in replicas.ranks]
    assert abs(loads[0] - loads[1]) <= len(shared) + 1


def test_what_a_client_chose_is_remembered() -> None:
    replicas, _ = played_replicas(2)
    assert send(replicas, "a", prompt(1, 3), rank=1) == 1
    replicas.end("")
    assert send(replicas, "b", prompt(1, 3)) == 1


def test_forgotten_on_restart_and_flush() -> None:
    replicas, played = played_replicas(2)
    assert [send(replicas, f"{i}", prompt(i, 3), rank=1) for i in range(2)] == [1, 1]
    replicas.end("")
    played[1].client.detach("dead")
    played[1].restart()
    replicas.dispatch._turn = 0
    assert send(replicas, "after", prompt(0, 3)) == 0
    replicas.end("")
    replicas.dispatch.forget()
    replicas.dispatch._turn = 1
    assert send(replicas, "flushed", prompt(0, 3)) == 1


def test_without_a_cache_prefix_is_total_tokens() -> None:
    replicas, _ = played_replicas(2, cached=False)
    assert [send(replicas, f"{i}", prompt(1, 4)) for i in range(4)] == [0, 1, 0, 1]


def test_never_to_one_that_is_down() -> None:
    for method in ("round_robin", "total_tokens", "total_requests", "prefix"):
        replicas, played = played_replicas(3, method)
        send(replicas, "known", prompt(1, 4), rank=0)
        played[0].client.detach("dead")
        played[2].client.detach("dead")
        assert {send(replicas, f"{i}", prompt(1, 4)) for i in range(5)} == {1}


def test_choices_of_a_prompt_stay_together() -> None:
    both = [1, 2]
    mixed = [request("a0", both, 0), request("a1", both, 0), request("b0", [3], 1), request("b1", [3], 1)]
    assert [[r.rid for r in group] for group in groups_of(mixed)] == [["a0", "a1"], ["b0", "b1"]]
    assert len(groups_of([request("a", [1], None), request("b", [1], None)])) == 2


@pytest.mark.parametrize("method", ["total_tokens", "total_requests", "prefix"])
def test_a_batch_is_shared_out(method: str) -> None:
    """Each prompt counts as load for the next."""
    replicas, played = played_replicas(2, method)
    batch = [request(f"{i}", prompt(i, 2), i) for i in range(6)]
    replicas.submit(batch, asyncio.Queue())
    assert [len(each.received) for each in played] == [1, 1]
    assert [len(each.rids) for each in played] == [3, 3]


def test_different_constraints_stay_together() -> None:
    one, two = Constraint("regex", "a"), Constraint("regex", "b")
    alike = [request("a", [1], 0, constraint=one), request("b", [2], 1, constraint=one)]
    assert len(groups_of(alike)) == 2
    differ = [request("a", [1], 0, constraint=one), request("b", [2], 1, constraint=two)]
    assert len(groups_of(differ)) == 1
    assert len(groups_of([*alike, request("c", [3], 2)])) == 1
