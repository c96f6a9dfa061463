"""Whatever comes, is aborted, dies or is cut, and in whatever order: every text is that of one engine, every
request ends, and in the end no page is in use on either side."""

from __future__ import annotations

import functools
import random
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.agents import CONTEXT, FAKE, Asked, Half, Pair, Text, alone, engine_of
from support.transfers import Bootstrap

from nextn.disaggregation import layout, turns
from nextn.engine.engine import Engine
from nextn.request import Request, SamplingParams

TIMEOUT = 0.2
JOBS = 12
POOLS = (CONTEXT + 8, 120, 2048)  # tokens; the first has room for one request
ENGINES: list[dict[str, Any]] = [
    {"speculative_num_steps": None},  # automatic
    {"speculative_num_steps": 3},
    {"disable_radix_cache": True},
    {"speculative_num_steps": 2, "chunked_prefill_size": 16, "max_running_requests": 3},
]


@functools.cache
def jobs() -> list[tuple[list[int], SamplingParams, Text]]:
    """Prompts, of which every other one begins as others do, and their texts."""
    rng = random.Random(1)
    common, made = rng.choices(range(2, 4096), k=CONTEXT), []
    for i in range(JOBS):
        n = [1, 2, 16, 17, 33, 40, CONTEXT - 2, CONTEXT - 9][i] if i < 8 else rng.randrange(1, CONTEXT)
        prompt = common[:n] if i % 2 else rng.choices(range(2, 4096), k=n)
        most = rng.choice([1, 2, 8, 20, 500])
        params = SamplingParams(max_tokens=most, temperature=rng.choice([0.0, 1.0]), seed=i)
        tokens, _, _ = alone(prompt, params)
        if len(tokens) > 2 and i % 3 == 0:
            params = params.replace(stop_token_ids=(tokens[len(tokens) // 2],))
        made.append((prompt, params, alone(prompt, params)))
    return made


@pytest.fixture(scope="module", autouse=True)
def _small_pieces() -> Iterator[None]:
    """So that a prompt is many pieces, and few of them are under way at a time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "PIECE", 256)
        patch.setattr(turns, "CONNECTION_IN_FLIGHT", 512)
        patch.setattr(turns, "IN_FLIGHT", 1024)
        yield


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[Bootstrap]:
    made = Bootstrap()
    yield made
    made.close()


JOB, PRIORITY, ANY = st.integers(0, JOBS - 1), st.integers(0, 2), st.integers(0, 9)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("both"), JOB, PRIORITY),
        st.tuples(st.just("both"), JOB, PRIORITY),
        st.tuples(st.just("both"), JOB, PRIORITY),
        st.tuples(st.just("choices"), JOB, st.integers(2, 3)),
        st.tuples(st.just("prefill first"), JOB, PRIORITY),
        st.tuples(st.just("decode first"), JOB, PRIORITY),
        st.tuples(st.just("prefill late"), ANY, ANY),
        st.tuples(st.just("decode late"), ANY, ANY),
        st.tuples(st.just("plain prefill"), JOB, PRIORITY),
        st.tuples(st.just("plain decode"), JOB, PRIORITY),
        st.tuples(st.just("abort prefill"), ANY, ANY),
        st.tuples(st.just("abort decode"), ANY, ANY),
        st.tuples(st.just("turn"), st.integers(1, 12), ANY),
        st.tuples(st.just("turn"), st.integers(1, 12), ANY),
        st.tuples(st.just("pause"), ANY, ANY),
        st.tuples(st.just("pause"), ANY, ANY),
        st.tuples(st.just("pause"), ANY, ANY),
        st.tuples(st.just("turn prefill"), st.integers(1, 6), ANY),
        st.tuples(st.just("turn decode"), st.integers(1, 6), ANY),
        st.tuples(st.just("cut"), ANY, ANY),
        st.tuples(st.just("corrupt"), st.integers(0, 3000), ANY),
        st.tuples(st.just("restart prefill"), ANY, ANY),
        st.tuples(st.just("restart decode"), ANY, ANY),
        st.tuples(st.just("break prefill"), ANY, ANY),
        st.tuples(st.just("break decode"), ANY, ANY),
    ),
    min_size=4,
    max_size=30,
)


def fail() -> None:
    raise RuntimeError("the test breaks it")


class Play:
    """expected: the texts of those that were not aborted and whose engine lives, by their ids. early, late:
    asked of one of the servers only, so far."""

    def __init__(self, both: Pair, options: dict[str, Any], pools: tuple[int, int]) -> None:
        self.both, self.options, self.pools = both, options, pools
        self.expected: dict[str, dict[str, Text]] = {"prefill": {}, "decode": {}}
        self.rooms: dict[str, int] = {}  # of what the prefill server has to do
        self.early, self.late = deque[tuple[Asked, int]](), deque[tuple[Asked, int]]()
        self.names = 0

    def step(self, what: str, i: int, n: int) -> None:
        action, _, which = what.partition(" ")
        both = self.both
        if action == "both":
            asked = self.ask(i, n)
            self.compute(asked)
            self.answer(asked, i)
        elif action == "choices":
            asked = self.ask(i)
            self.compute(asked)
            self.answer(asked, i, n)
        elif which == "first":
            asked = self.ask(i, n)
            if action == "prefill":
                self.compute(asked)
                self.early.append((asked, i))
            else:
                self.answer(asked, i)
                self.late.append((asked, i))
        elif what == "prefill late" and self.late:
            self.compute(self.late.popleft()[0])
        elif what == "decode late" and self.early:
            self.answer(*self.early.popleft())
        elif action == "plain":
            prompt, params, text = jobs()[i]
            rid = self.name()
            self.half(which).add(Request(rid, list(prompt), params, n))
            self.expected[which][rid] = text
        elif action == "abort":
            self.abort(which, i)
        elif action == "turn":
            for _ in range(i):
                both.turn([self.half(which)] if which else None, 0)
        elif action == "pause":  # the threads that move bytes get on
            time.sleep(0.01)
        elif action == "cut":
            both.network.cut()
        elif action == "corrupt":
            both.network.corrupt_at["down"] = both.network.passed["down"] + i
        elif action == "restart":
            self.restart(which)
        elif action == "break":
            agent: Any = self.half(which).agent
            end = agent._source if which == "prefill" else agent._sink
            end.call(fail)
            end._thread.join(60)
            with pytest.raises(RuntimeError, match="the test breaks it"):
                agent.exchange([])
            self.restart(which)  # as the supervisor does

    def half(self, which: str) -> Half:
        return self.both.prefill if which == "prefill" else self.both.decode

    def name(self) -> str:
        self.names += 1
        return str(self.names)

    def ask(self, job: int, priority: int = 0) -> Asked:
        prompt, params, _ = jobs()[job]
        return self.both.asked(self.name(), prompt, params, priority)

    def compute(self, asked: Asked) -> None:
        self.both.compute(asked)
        self.expected["prefill"][asked.rid] = [], "length", None
        self.rooms[asked.rid] = asked.room

    def answer(self, asked: Asked, job: int, choices: int = 1) -> None:
        for rid in self.both.answer(asked, choices):
            self.expected["decode"][rid] = jobs()[job][2]

    def abort(self, which: str, i: int) -> None:
        half = self.half(which)
        if not half.requests:
            return
        rid = list(half.requests)[i % len(half.requests)]
        del self.expected[which][rid]
        if which == "prefill" and rid in self.rooms:
            self.both.lose(rid, self.rooms[rid])
        else:
            half.abort(rid)

    def restart(self, which: str) -> None:
        for rid in self.half(which).requests:
            del self.expected[which][rid]
            if which == "prefill" and rid in self.rooms:
                self.both.forget_room(self.rooms[rid])
        self.check_texts(self.half(which))
        self.expected[which].clear()
        if which == "prefill":
            self.both.restart_prefill(self.engine(0))
        else:
            self.both.restart_decode(self.engine(1))

    def engine(self, side: int) -> Engine:
        return engine_of(FAKE, **self.options, kv_cache_tokens=self.pools[side])

    def check_texts(self, half: Half) -> None:
        found, expected = half.texts, self.expected[half.name]
        assert {rid: found[rid] for rid in expected} == expected


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=STEPS,
    options=st.sampled_from(ENGINES),
    page_size=st.sampled_from([4, 8]),
    pools=st.tuples(st.sampled_from(POOLS), st.sampled_from(POOLS)),
    backend=st.sampled_from(["tcp", "tcp", "shm"]),
)
def test_whatever_comes(
    bootstrap: Bootstrap,
    steps: list[tuple[str, int, int]],
    options: dict[str, Any],
    page_size: int,
    pools: tuple[int, int],
    backend: str,
) -> None:
    options = options | {"page_size": page_size}
    prefill, decode = (engine_of(FAKE, **options, kv_cache_tokens=pool) for pool in pools)
    both = Pair(prefill, decode, bootstrap, backend, TIMEOUT)
    try:
        play = Play(both, options, pools)
        for step in steps:
            play.step(*step)
        both.settle()
        both.check_empty()
        for half in both.halves:
            play.check_texts(half)
    finally:
        both.close()
