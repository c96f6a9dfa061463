"""The demo of prefill and decode apart with servers, gateway and client replaced."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from nextn.bench import demo_apart
from nextn.bench.apis import Body
from nextn.bench.client import Load, Reply
from nextn.bench.errors import BenchError
from nextn.bench.gateway import need_gateway
from nextn.cli import main

METRICS = (
    "nextn:queue_time_seconds_sum 1\nnextn:queue_time_seconds_count 1\nnextn:transfer_finished_total 6\n"
)


class Server:
    """Stands in for LocalServer and Gateway."""

    started: dict[str, list[str]]

    def __init__(self, name: str, *rest: Any) -> None:
        self.name = self.url = name
        self.model, self.log = "nextn-tiny", Path("log")
        if rest and isinstance(rest[0], list):
            self.started[name] = rest[0]

    def wait_ready(self) -> None:
        pass

    def last_lines(self) -> list[str]:
        return []

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *error: object) -> None:
        pass


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """By URL, what its server writes after the prompt's number."""
    written: dict[str, str] = {}
    monkeypatch.setattr(Server, "started", {}, raising=False)

    async def run_load(
        url: str, bodies: Sequence[Body], concurrency: int, on_reply: Callable[[], None] = lambda: None
    ) -> Load:
        replies = [Reply(f"{b['seed']}{written.get(url, '')}", 5, 2, 0.0, (0.1, 0.2)) for b in bodies]
        for _ in bodies:
            on_reply()
        return Load(replies, 1.0)

    async def get_text(url: str, path: str) -> str:
        return METRICS

    for name, value in (
        ("LocalServer", Server),
        ("Gateway", lambda *args: Server("gateway")),
        ("need_gateway", lambda: None),
        ("run_load", run_load),
        ("get_text", get_text),
    ):
        monkeypatch.setattr(demo_apart, name, value)
    return written


def demo(folder: Path, *options: str) -> int:
    return main(
        ["demo", "--disaggregated", "--quick", "--num-prompts", "3", "--output-dir", str(folder), *options]
    )


def test_it_compares_and_draws(
    texts: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert demo(tmp_path) == 0
    printed = capsys.readouterr().out
    assert "18 texts of 3 prompts compared, 0 differ" in printed
    assert "6 prompts were handed over" in printed
    assert max(map(len, printed.splitlines()[:12])) <= 100
    found = json.loads((tmp_path / "results.json").read_text())
    assert [(r["concurrency"], r["side"]) for r in found["rows"]] == [
        (c, side) for c in (1, 4, 8) for side in (demo_apart.ONE, demo_apart.TWO)
    ]
    assert (tmp_path / "where-the-time-went.png").read_bytes().startswith(b"\x89PNG")


def test_both_sides_have_the_same_threads(texts: dict[str, str], tmp_path: Path) -> None:
    assert demo(tmp_path, "--threads", "4") == 0
    threads = {name: words[words.index("--threads") + 1] for name, words in Server.started.items()}
    assert threads == {demo_apart.ONE: "4", "prefill": "2", "decode": "2"}


def test_another_text_is_an_exit_code(
    texts: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts["gateway"] = " other"
    assert demo(tmp_path) == 1
    assert "prompt 0 has two texts" in capsys.readouterr().out


def test_without_a_gateway_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BenchError, match=r"pip install 'nextn\[gateway\]'"):
        need_gateway()
