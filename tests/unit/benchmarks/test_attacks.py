"""benchmarks/attacks.py: the requests are what their names say, and what does not hold is reported."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nextn.constraint import MOST_TEXT

FAULTS = Path(__file__).parents[3] / "benchmarks" / "faults"


@pytest.fixture(autouse=True)
def faults(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder of scripts, not a package."""
    monkeypatch.syspath_prepend(str(FAULTS))
    yield
    for name in [n for n, m in sys.modules.items() if str(FAULTS) in str(getattr(m, "__file__", ""))]:
        del sys.modules[name]


def test_the_grammars_are_as_large_as_they_say() -> None:
    from attack_cases import (
        bare_references,
        endless_gbnf,
        gbnf_chain,
        lark_chain,
        linked_objects,
        long_regex,
        powers,
    )

    assert lark_chain(3).splitlines() == ["start: r0", 'r0: "a" r1', 'r1: "a" r2', 'r2: "a" r3', 'r3: "b"']
    assert gbnf_chain(2).splitlines() == ["root ::= r0", 'r0 ::= "a" r1', 'r1 ::= "a" r2', 'r2 ::= "b"']
    assert bare_references(1)["$defs"] == {"n0": {"$ref": "#/$defs/n1"}, "n1": {"type": "string"}}
    assert len(linked_objects(1500)["$defs"]) == 1501
    assert len(set(powers())) == 20
    assert len(endless_gbnf(0).splitlines()) == 50_002
    assert endless_gbnf(0) != endless_gbnf(1)
    # As large as they can be: longer ones are refused by their length alone.
    assert all(800_000 < len(text) <= MOST_TEXT for text in (endless_gbnf(2), long_regex()))


def test_every_attack_makes_requests() -> None:
    from attack_cases import ATTACKS, encoded

    for name, attack in ATTACKS.items():
        if not name.startswith("prompt-"):  # of 30 MB
            requests = attack.make()
            assert requests, name
            assert all(isinstance(json.loads(encoded(each)), dict) for each in requests), name


@pytest.mark.parametrize(
    ("answer", "refused", "failures", "ended"),
    [
        ({"ended": "whole", "status": 200}, False, 0, "whole 200"),
        ({"ended": "whole", "status": 200}, True, 1, "whole 200"),
        ({"ended": "error", "status": 400, "code": "x"}, True, 0, "error 400"),
        ({"ended": "error", "status": 500, "code": "x"}, False, 1, "error 500"),
        ({"ended": "error", "status": 200, "code": "x"}, False, 1, "error 200"),  # in a stream
        ({"ended": "broken", "status": 0}, False, 1, "broken"),
        ({"ended": "left", "status": 0}, False, 0, "left"),
        (None, False, 1, "hung"),
    ],
)
async def test_what_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any] | None, refused: bool, failures: int, ended: str
) -> None:
    import asyncio

    import attacks
    from attack_cases import completion
    from client import Answer

    async def asked(*args: Any, **more: Any) -> Answer:
        if answer is None:
            await asyncio.sleep(60)
        return Answer(**(answer or {}))

    monkeypatch.setattr(attacks, "ask", asked)
    report = attacks.Report()
    await attacks.sent(("127.0.0.1", 1), completion(), b"", refused, 0.05, report)
    assert len(report.failures) == failures, report.failures
    assert dict(report.ended) == {ended: 1}
    assert report.result()["held"] == (not failures)


def test_a_family_is_counted_with_its_children() -> None:
    import os
    import subprocess

    from server import family

    with subprocess.Popen(["sleep", "60"]) as child:
        found = dict(family(os.getpid()))
        child.kill()
    assert found[os.getpid()] > 1
    assert child.pid in found
