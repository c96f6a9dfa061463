"""The instruments of benchmarks/load_and_faults.py see what they are there to see."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FAULTS = Path(__file__).parents[3] / "benchmarks" / "faults"


@pytest.fixture(autouse=True)
def faults(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder of scripts, not a package."""
    monkeypatch.syspath_prepend(str(FAULTS))
    yield
    for name in [n for n, m in sys.modules.items() if str(FAULTS) in str(getattr(m, "__file__", ""))]:
        del sys.modules[name]


def event(shown: object) -> bytes:
    line = b"data: " + (shown if isinstance(shown, bytes) else json.dumps(shown).encode()) + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(line), line)


HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
TEXT = event({"choices": [{"text": "a"}]}) + event({"choices": [{"text": "b"}]})
ERROR = event({"error": {"code": "engine_dead"}})
END = event(b"[DONE]") + b"0\r\n\r\n"
JSON = b'{"choices": [{"text": "ab"}]}'
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(JSON) + JSON


@pytest.mark.parametrize(
    ("come", "ended", "text", "code"),
    [
        (HEAD + TEXT + END, "whole", "ab", None),
        (HEAD + TEXT + ERROR + END, "error", "ab", "engine_dead"),
        (HEAD + TEXT, "broken", "", None),
        (HEAD + TEXT + END[:-3], "broken", "", None),
        (HEAD, "broken", "", None),
        (HEAD[:20], "broken", "", None),
        (b"", "broken", "", None),
        (WHOLE, "whole", "ab", None),
        (WHOLE[:-1], "broken", "", None),
    ],
)
def test_how_an_answer_ended(come: bytes, ended: str, text: str, code: str | None) -> None:
    from client import Answer, understand

    answer = Answer()
    understand(come, answer)
    assert (answer.ended, answer.text, answer.code) == (ended, text, code)


def a_load(prompts: int = 16) -> Any:
    from scenarios import Load

    load = Load(None, 1.0, 2, random.Random(0))
    assert len(load.prompts) == prompts
    return load


def test_a_text_that_differs_is_seen() -> None:
    from client import Answer

    load = a_load()
    load.note(1, Answer("whole", text="a"))
    load.note(2, Answer("whole", text="b"))
    load.note(17, Answer("whole", text="a"))
    with pytest.raises(AssertionError, match="prompt 1: 'a', and now 'b'"):
        load.note(17, Answer("whole", text="b"))


def test_what_may_not_happen_is_seen() -> None:
    from client import Answer

    load = a_load()
    load.note(0, Answer("whole", text="a"))
    load.allow({"whole"})
    load.note(0, Answer("error", code="queue_full"))
    with pytest.raises(AssertionError):
        load.allow({"whole"})
    with pytest.raises(AssertionError):
        load.allow({"whole", "error"}, {"engine_dead"})


def test_memory_that_grows_is_seen() -> None:
    load = a_load()
    load.megabytes = [100.0] * 10 + [200.0] * 10 + [100.0 + 10 * i for i in range(20)]
    assert load.growth > 60
    load.megabytes = [50.0] * 3 + [100.0] * 30
    assert load.growth == 0


def test_bodies_are_the_same_for_the_same_seed() -> None:
    from bodies import malformed

    first, again = ([malformed(rng) for _ in range(300)] for rng in (random.Random(5), random.Random(5)))
    assert first == again
    assert len({body for _, body in first}) > 290


async def test_a_clean_connection_and_a_broken_one_through_the_proxy() -> None:
    from client import ask
    from proxy import ChaosProxy

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"}")
            writer.write(HEAD + TEXT * 60 + END)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, ChaosProxy(server.sockets[0].getsockname()[:2], random.Random(0)) as proxy:
        answers = await asyncio.gather(*(ask(proxy.address, {"n": 1}) for _ in range(40)))
    ended = [answer.ended for answer in answers]
    kept = sum(proxy.fates[fate] for fate in ("clean", "delayed", "pieces"))
    assert sum(proxy.fates.values()) == 40
    assert kept <= ended.count("whole") < 40
    assert all(answer.text == "ab" * 60 for answer in answers if answer.ended == "whole")
