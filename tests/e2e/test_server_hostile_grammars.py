"""Hostile constraints end, block or fill no server: each gets its answer, and so do other requests."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2e.conftest import scripted_server
from support.grammars import FOR_EVER, HOSTILE
from support.server_process import ServerProcess, check_ended, in_background, until

MIB = 2**20
COMMAND = [
    "-m", "nextn", "serve", "--model-path", "fake:1,0.75", "--served-model-name", "fake", "--port", "0",
    "--threads", "1", "--check-integrity", "--kv-cache-tokens", "2048",
]  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess([*COMMAND, "--grammar-compile-timeout", "2"]) as server:
        yield server


@pytest.fixture(scope="module")
def patient(tokenizer_folder: Path) -> Iterator[ServerProcess]:
    """It compiles grammars like any other; its texts do not follow them."""
    with scripted_server(tokenizer_folder, "--grammar-compile-timeout", "600") as server:
        yield server


def ask(server: ServerProcess, seconds: float = 60, **fields: Any) -> httpx.Response:
    sampling = {"max_new_tokens": 8, **fields}
    return httpx.post(
        server.url + "/generate", json={"text": "x", "sampling_params": sampling}, timeout=seconds
    )


def check_honest(server: ServerProcess, regex: str = "[0-9]{4}") -> None:
    answer = ask(server, regex=regex)
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["text"]) == 4


def error(answer: httpx.Response) -> str:
    assert answer.status_code == 400, answer.text
    message: str = answer.json()["error"]["message"]
    return message


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


@pytest.mark.parametrize(("kind", "text", "message"), HOSTILE.values(), ids=HOSTILE)
def test_an_attack_is_its_own(server: ServerProcess, kind: str, text: str, message: str) -> None:
    engine, shown = server.engine_pid(), []
    fields = {"structured_outputs": {"grammar": text}} if kind == "lark" else {kind: text}

    def attack() -> None:
        body = {"model": "fake", "prompt": "x", "max_tokens": 8, **fields}
        shown.append(httpx.post(server.url + "/v1/completions", json=body, timeout=60))

    (attacker,) = in_background(attack)
    check_honest(server)
    attacker.join(60)
    why = error(shown[0])
    slow = "it takes more than 2 s to compile (--grammar-compile-timeout)"
    assert why.startswith(f"{kind}: ")
    assert re.match(f"{kind}: {message}", why) or slow in why
    check_honest(server)
    assert server.engine_pid() == engine


def test_memory_stays(server: ServerProcess) -> None:
    check_honest(server)
    engine = server.engine_pid()
    before = resident(engine)
    for i in range(2):
        error(ask(server, regex=f"((x{{100}}){{100}}){{{100 + i}}}"))
    assert resident(engine) - before < 40 * MIB
    assert server.engine_pid() == engine


def test_many_of_one_connection_leave_room_for_another(server: ServerProcess) -> None:
    """More than are compiled at once, none of which ends by itself."""
    many = [{"max_new_tokens": 4, "ebnf": FOR_EVER + " " * i} for i in range(3)]
    body, shown = {"text": ["x"] * len(many), "sampling_params": many}, []

    def attack() -> None:
        shown.append(error(httpx.post(server.url + "/generate", json=body, timeout=60)))

    (attacker,) = in_background(attack)
    for digit in "123":
        check_honest(server, f"{digit}[a-z]{{3}}")
    attacker.join(60)
    assert shown == ["ebnf: it takes more than 2 s to compile (--grammar-compile-timeout)"]


def test_the_work_for_a_client_that_left_ends(patient: ServerProcess) -> None:
    def attack(i: int) -> None:
        with pytest.raises(httpx.ReadTimeout):
            ask(patient, 1.0, ebnf=FOR_EVER + " " * i)

    for attacker in in_background(*(lambda i=i: attack(i) for i in range(4))):
        attacker.join(60)
    assert ask(patient, regex="[0-9]{4}").status_code == 200  # else it would wait for minutes
    until(lambda: patient.metrics()["nextn:num_queue_reqs"] == 0)


@pytest.mark.parametrize("speculative", [False, {"num_steps": 2}])
def test_a_limit_while_the_text_is_written(server: ServerProcess, speculative: Any) -> None:
    """Sound at its beginning; what may follow needs more and more."""
    body = {
        "prompt": "x", "regex": "((.{1,60}a){1,60}b)*c", "max_tokens": 1000, "seed": 1, "temperature": 1,
        "speculative": speculative, "logit_bias": {"1": -100},
    }  # fmt: skip
    limit = "llguidance reached a limit: lexer error: too many"
    assert limit in error(httpx.post(server.url + "/v1/completions", json=body, timeout=60))
    streamed = httpx.post(server.url + "/v1/completions", json={**body, "stream": True}, timeout=60)
    chunks = [json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: {")]
    assert chunks[0]["choices"][0]["text"]
    assert limit in chunks[-1]["error"]["message"]
    check_honest(server)


def test_many_choices_of_one_long_constraint(server: ServerProcess) -> None:
    body = {"prompt": "x", "regex": "a" * 1_000_000, "n": 100}
    message = error(httpx.post(server.url + "/v1/completions", json=body, timeout=60))
    assert "100000000 characters, counted for each of the choices" in message
    assert "1048577 characters; 1048576 are allowed" in error(ask(server, regex="a" * (2**20 + 1)))


@pytest.mark.parametrize("regex", ["((x{100}){100}){100}", "(" * 400 + "x" + ")" * 400, "x" * 2000])
def test_stop_regexes(server: ServerProcess, regex: str) -> None:
    """The fake model does not write what would take long to look for; that is the unit tests' part."""
    engine = server.engine_pid()
    answer = ask(server, stop_regex=regex)
    assert answer.status_code in (200, 400), answer.text
    if answer.status_code == 400:
        assert "stop_regex: " in error(answer)
    check_honest(server)
    assert server.engine_pid() == engine


def test_it_ends_with_all_its_processes(server: ServerProcess) -> None:
    """The last of this file."""
    ask(server, stop_regex="a")

    def attack() -> None:
        with contextlib.suppress(httpx.HTTPError):
            ask(server, ebnf=FOR_EVER + "  ")

    in_background(attack)
    until(lambda: len(server.session()) > 4)
    server.interrupt()
    check_ended(server, 130)
