"""Two engines and their agents over real sockets: the texts are those of one engine, and no page is lost on
either side. (In any order: test_agents_property.py. With servers around them:
tests/e2e/test_disaggregation.py.)"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from typing import Any

import pytest
from support.agents import CONTEXT, Pair, alone, engine_of, pair
from support.transfers import Bootstrap

from nextn.request import PREFILL_FAILED, Request, SamplingParams

PARAMS = SamplingParams(max_tokens=9, temperature=1.0, seed=5, ignore_eos=True)


@pytest.fixture
def bootstrap() -> Iterator[Bootstrap]:
    made = Bootstrap()
    yield made
    made.close()


def prompt(n: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(2, 4096), k=n)


def check(
    both: Pair, rid: str, tokens: list[int], params: SamplingParams = PARAMS, fetched: bool = True
) -> None:
    """One request, by both of them."""
    before = both.decode.agent.stats.finished, both.decode.agent.stats.fallbacks
    both.ask(rid, tokens, params)
    both.settle()
    assert both.decode.texts[rid] == alone(tokens, params)
    assert both.prefill.texts[rid] == ([], "length", None)
    after = both.decode.agent.stats.finished, both.decode.agent.stats.fallbacks
    assert after == (before[0] + fetched, before[1] + (not fetched))
    both.check_empty()


@pytest.mark.parametrize(
    ("backend", "options"),
    [("shm", {}), ("tcp", {"disable_radix_cache": True}), ("tcp", {"speculative_num_steps": 3})],
    ids=str,
)
def test_lengths(bootstrap: Bootstrap, backend: str, options: dict[str, Any]) -> None:
    """Of one token there is nothing to fetch; others end at a page's edge, or at the context's."""
    with pair(bootstrap, engine_of(**options), engine_of(**options), backend=backend) as both:
        for n in (1, 2, 16, 17, 18, 33, 50, CONTEXT - 1):
            check(both, str(n), prompt(n, n))
        assert both.decode.agent.stats.pages == (0 if n == 1 else 1 + 1 + 1 + 2 + 2 + 4 + 5)


@pytest.mark.parametrize("most", [0, 1, 2])
def test_few_tokens(bootstrap: Bootstrap, most: int) -> None:
    with pair(bootstrap) as both:
        check(both, "a", prompt(40), PARAMS.replace(max_tokens=most))


def test_a_prompt_in_the_decode_sides_cache(bootstrap: Bootstrap) -> None:
    """Only the pages that are not there are fetched."""
    with pair(bootstrap) as both:
        tokens = prompt(41)
        both.decode.add(Request("plain", list(tokens), PARAMS))
        both.settle()
        check(both, "all but a part of a page", tokens)
        assert both.decode.agent.stats.pages == 1
        check(both, "all", tokens[:33])
        assert both.decode.agent.stats.pages == 1


def test_cached_tokens_are_those_of_one_engine(bootstrap: Bootstrap) -> None:
    one = engine_of()
    with pair(bootstrap) as both:
        for i, n in enumerate((40, 40, 55, 20)):
            request = Request("r", prompt(n), PARAMS)
            one.add(request)
            while one.has_work():
                one.step()
            check(both, str(i), prompt(n))
            assert both.decode.last[str(i)].cached_tokens == request.first_cached
            if i == 1:
                assert both.decode.engine.flush_cache()  # the prefill server has it still


def test_choices_of_one_prompt(bootstrap: Bootstrap) -> None:
    with pair(bootstrap) as both:
        asked = both.asked("a", prompt(50), PARAMS)
        both.compute(asked)
        rids = both.answer(asked, choices=3)
        both.settle()
        assert [both.decode.texts[rid] for rid in rids] == [alone(asked.tokens, PARAMS)] * 3
        assert both.decode.agent.stats.pages == 4
        both.check_empty()


def test_the_error_without_a_fallback(bootstrap: Bootstrap) -> None:
    with pair(bootstrap, fallback=False) as both:
        for way in ("lost", "gone"):
            asked = both.asked(way, prompt(40), PARAMS)
            both.compute(asked)
            if way == "lost":
                both.lose(way, asked.room)
            else:
                both.restart_prefill(engine_of())
            both.answer(asked)
            both.settle()
            out = both.decode.last[way]
            assert (out.finish_reason, out.error_code) == ("error", PREFILL_FAILED)
            assert f"127.0.0.1:{bootstrap.port} failed" in str(out.error)
            assert both.decode.tokens[way] == []
            both.check_empty()
        check(both, "another", prompt(40))


def test_lost_before_there_are_pages_for_it(bootstrap: Bootstrap) -> None:
    with pair(bootstrap, decode=engine_of(kv_cache_tokens=80)) as both:
        asked = both.asked("late", prompt(50), PARAMS)
        long = PARAMS.replace(max_tokens=500)
        both.decode.add(Request("long", prompt(20, 1), long))
        both.turn([both.decode])
        both.answer(asked)
        both.forget_room(asked.room)
        while both.decode.agent.stats.active:
            assert "late" not in both.decode.engine.transfers.fetching
            both.turn([both.decode])
            if both.decode.engine.has_work():
                continue
        both.settle()
        assert both.decode.texts["late"] == alone(asked.tokens, PARAMS)
        assert both.decode.texts["long"] == alone(prompt(20, 1), long)
        assert both.decode.agent.stats.fallbacks == 1
        both.check_empty()


def test_a_decode_server_that_dies_while_the_prompt_is_computed(bootstrap: Bootstrap) -> None:
    with pair(bootstrap, engine_of(chunked_prefill_size=16, max_running_requests=4)) as both:
        asked = both.asked("a", prompt(64), PARAMS)
        both.compute(asked)
        both.answer(asked)
        source = both.prefill.agent._source  # type: ignore[attr-defined]
        both.turn([both.decode])
        while not source._transfers:
            both.turn([both.decode], 0.01)
        both.restart_decode(engine_of())
        while both.prefill.agent.stats.active:  # the decode server is gone before the first step
            both.prefill.agent.exchange([])
        both.settle()
        assert both.prefill.texts["a"] == ([], "length", None)
        both.check_empty()


def test_each_side_waits_for_pages_that_wait_for_the_other(bootstrap: Bootstrap) -> None:
    """Either pool has room for one prompt. The prefill server holds the second, and the decode server has
    taken pages for the first."""
    small = {"kv_cache_tokens": 80, "disable_radix_cache": True}
    with pair(bootstrap, engine_of(**small), engine_of(**small), timeout=2) as both:
        first, second = (both.asked(rid, prompt(60, i), PARAMS) for i, rid in enumerate(("first", "second")))
        both.answer(first)
        both.answer(second)
        both.compute(second)
        for _ in range(3):
            both.turn([both.prefill], 0)
        both.compute(first)
        both.settle()
        for asked in (first, second):
            assert both.decode.texts[asked.rid] == alone(asked.tokens, PARAMS)
        both.check_empty()


DIFFERENT: dict[str, tuple[str, dict[str, Any]]] = {
    "page size": ("page_size is 16 on the decode server and 32", {"page_size": 32}),
    "model": ("model is", {"model": "fake:0.5"}),
    "layers": ("layers is 2 on the decode server and 1", {"speculative_num_steps": 0}),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_another_engine_is_refused(bootstrap: Bootstrap, what: str, caplog: pytest.LogCaptureFixture) -> None:
    said, options = DIFFERENT[what]
    with pair(bootstrap, engine_of(**options)) as both:
        asked = both.asked("a", prompt(50), PARAMS)
        with caplog.at_level(logging.WARNING, "nextn"):
            both.compute(asked)
            both.answer(asked)
            while both.decode.engine.has_work():
                both.turn()
        assert both.decode.texts["a"] == alone(asked.tokens, PARAMS)
        assert both.decode.agent.stats.fallbacks == 1
        assert said in caplog.text
        both.prefill.abort("a")
