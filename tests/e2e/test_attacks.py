"""benchmarks/attacks.py in its short form: one client's requests that must not harm another's. Nothing here
depends on speed; whether the other client is slowed down is measured by hand, in the long form."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.script_modules import script_modules

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "attacks.py"
SOME = ("gbnf-leaves", "gbnf-endless-mask", "stop-regex-long", "prompt-chat", "engine-stopped")


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    folder = SCRIPT.parent / "faults"
    yield from script_modules(monkeypatch, folder, ("client", "server", "attack_cases", "attacks"))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
def test_short_form(modules: SimpleNamespace) -> None:
    """Of each kind one. Of other kinds: test_hostile_requests.py (trees), test_server_hostile_grammars.py
    (schemas) and tests/unit/server/http/test_auth.py (keys)."""
    assert set(SOME) < set(modules.attacks.NAMES)
    command = [sys.executable, SCRIPT, "--short", "--attack", *SOME]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout, done.stderr
    attacks = json.loads(done.stdout)["attacks"]
    failed = {name: found["failures"] for name, found in attacks.items() if not found["held"]}
    assert failed == {}
    assert done.returncode == 0, done.stderr
    assert attacks.keys() == set(SOME)
