"""What automatic depth does at a load, wherever a server reports it; the scripted engine says it."""

from __future__ import annotations

import subprocess
import sys

import httpx
import pytest
from e2e.conftest import StartServer
from support.server_process import ServerProcess, until

from nextn.drafting_state import DraftingState, drafting_words

ASK = {"prompt": "x", "max_tokens": 30, "temperature": 0}


def shown(server: ServerProcess) -> tuple[object, object, dict[str, float]]:
    """By /v1/loads, /server_info and /metrics."""
    (load,) = httpx.get(server.url + "/v1/loads").json()["loads"]
    (state,) = httpx.get(server.url + "/server_info").json()["internal_states"]
    gauges = {name: value for name, value in server.metrics().items() if name.startswith("nextn:auto_")}
    return load["speculative"].get("auto"), state.get("speculative_auto"), gauges


@pytest.mark.parametrize(
    ("gain", "words"),
    [
        ("0.94", "not drafting at 1 request; drafts would make 0.94 x the tokens/s"),
        ("1.5", "drafting at 1 request; drafts make 1.50 x the tokens/s"),
    ],
)
def test_it_is_told(gain: str, words: str, start: StartServer) -> None:
    """In the same words everywhere."""
    with start(SCRIPT_AUTO=gain) as server:
        assert httpx.post(server.url + "/v1/completions", json=ASK).status_code == 200
        does = float(gain) >= 1
        by_load, by_info, gauges = shown(server)
        assert by_load == by_info
        assert isinstance(by_load, dict)
        assert (by_load["drafting"], by_load["gain"]) == (does, float(gain))
        line = drafting_words(DraftingState(**by_load))
        assert line in (words, words.replace("1 request", "0 requests"))  # it may have ended
        assert gauges == {"nextn:auto_drafting": does, "nextn:auto_draft_gain": float(gain)}
        until(lambda: any(said.endswith(f"auto: {words}") for said in server.stderr))
        assert sum("auto: " in said for said in server.stderr) == 1
        command = [sys.executable, "-m", "nextn", "top", "--once", "--base-url", server.url]
        frame = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert f"auto depth    {line}\n" in frame.stdout


def test_a_fixed_depth_has_nothing_to_tell(scripted: ServerProcess) -> None:
    assert httpx.post(scripted.url + "/v1/completions", json=ASK).status_code == 200
    assert shown(scripted) == (None, None, {})
    assert not any("auto: " in said for said in scripted.stderr)
