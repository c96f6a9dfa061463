"""The demo's run with the servers and the client replaced: what is asked, what is compared, how it ends."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nextn.bench import demo
from nextn.bench.apis import Body
from nextn.bench.client import Load, Reply
from nextn.bench.errors import BenchError
from nextn.bench.prompts import questions
from nextn.cli import main
from nextn.config import model_folder
from nextn.drafting_state import DraftingState
from nextn.stats import SpecStats

Text = Callable[[str, Body], str]


def honest(name: str, body: Body) -> str:
    return f"{body['prompt']} {body['seed']} {body['temperature']}"


class Servers:
    """Stands in for LocalServer, its /metrics and the load client. Both servers answer with `text`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, text: Text = honest) -> None:
        self.text = text
        self.auto = False
        self.started: list[list[str]] = []
        self.stopped: list[str] = []
        self.loads: list[tuple[str, int, list[Body]]] = []  # server, concurrency, requests
        self.verify_steps = {demo.WITHOUT: 0, demo.WITH: 0}
        monkeypatch.setattr(demo, "LocalServer", self.local_server)
        monkeypatch.setattr(demo, "read_spec", self.read_spec)
        monkeypatch.setattr(demo, "run_load", self.run_load)
        monkeypatch.setattr(demo, "get", self.get)
        monkeypatch.setattr(demo, "DraftingWatch", self.watch)
        monkeypatch.setattr(demo, "post", self.post)

    def local_server(self, name: str, options: Sequence[str], log: Path) -> Any:
        self.started.append(list(options))
        stopped = self.stopped

        class Server:
            url, model = name, "nextn-tiny"

            def __init__(self) -> None:
                self.name, self.log = name, log

            def wait_ready(self) -> None:
                pass

            def last_lines(self) -> list[str]:
                return [f"last words of {name}"]

            def __enter__(self) -> Server:
                return self

            def __exit__(self, *_: object) -> None:
                stopped.append(name)

        return Server()

    async def read_spec(self, url: str) -> SpecStats:
        steps = self.verify_steps[url]
        return SpecStats(steps, [steps], [steps // 2], steps + steps // 2)

    async def run_load(
        self, url: str, bodies: Sequence[Body], concurrency: int, on_reply: Callable[[], None] = lambda: None
    ) -> Load:
        self.loads.append((url, concurrency, list(bodies)))
        self.verify_steps[url] += 100 * len(bodies)
        seconds = len(bodies) / (concurrency if url == demo.WITHOUT else 2 * concurrency)
        return Load([Reply(self.text(url, b), 9, 8, 1.0, (1.5, 2.5)) for b in bodies], seconds)

    @asynccontextmanager
    async def watch(self, url: str) -> AsyncIterator[SimpleNamespace]:
        """Automatic depth drafts but at 16 requests."""
        seen = SimpleNamespace()
        yield seen
        at = self.loads[-1][1]
        seen.found = (
            DraftingState(at < 16, at, 16 / at, f"at {at}") if url == demo.WITH and self.auto else None
        )

    async def get(self, url: str, path: str) -> Any:
        return {"engine": {"dtype": "float32", "device": "cpu", "threads": 2}}

    async def post(self, url: str, path: str, body: Body) -> Any:
        assert body["return_draft_depths"] is True
        text = self.text(url, body)
        assert body["return_draft_steps"] is True
        steps = [
            {"tokens": 1, "drafts": [], "accepted": [], "seconds": 0.1},
            {"tokens": 1, "drafts": ["x", "y"], "accepted": [0], "seconds": 0.2},
        ]
        depths = [[text[:3], 0], [text[3:], 1]]
        return {"choices": [{"text": text, "draft_depths": depths, "draft_steps": steps}]}


@pytest.fixture
def settings(tmp_path: Path) -> demo.Settings:
    return demo.Settings(
        "nextn-tiny", 2, 8, 16, 2, tmp_path / "made", bar=False, server_options=["--cpu-isa", "avx2"]
    )


def results_of(settings: demo.Settings) -> Any:
    return json.loads((settings.output_dir / "results.json").read_text())


def test_prompts_at_a_concurrency_are_the_first_of_those_at_the_next(settings: demo.Settings) -> None:
    at = {c: settings.bodies(c) for c in (1, 4, 16)}
    assert [len(bodies) for bodies in at.values()] == [6, 8, 16]
    assert at[1] == at[4][:6] == at[16][:6]
    assert at[4] == at[16][:8]


def test_questions_are_asked_in_the_chat_template(settings: demo.Settings) -> None:
    """And answers end where the model ends them."""
    bodies = dataclasses.replace(settings, questions=True).bodies(16)
    assert len(bodies) == 16
    assert bodies[0]["prompt"].startswith("<｜begin▁of▁sentence｜>")
    assert questions()[0] in bodies[0]["prompt"]
    assert not any(body["ignore_eos"] for body in bodies)
    with pytest.raises(ValueError, match="100 prompts were requested; there are only 32 questions"):
        dataclasses.replace(settings, questions=True, num_prompts=100).bodies(16)


def test_questions_need_a_chat_template(settings: demo.Settings, tmp_path: Path) -> None:
    for file in model_folder("nextn-tiny").iterdir():
        (tmp_path / file.name).symlink_to(file)
    plain = json.loads((tmp_path / "tokenizer_config.json").read_text())
    del plain["chat_template"]
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(plain))
    with pytest.raises(ValueError, match="has no chat template; use --prompts code"):
        dataclasses.replace(settings, questions=True, model_path=str(tmp_path)).bodies(1)


def test_some_prompts_are_sampled_with_a_seed_of_their_own(settings: demo.Settings) -> None:
    bodies = settings.bodies(16)
    sampled = [b for b in bodies if b["temperature"] == 0.7]
    assert len(sampled) == 5
    assert {b["temperature"] for b in bodies if b not in sampled} == {0.0}
    assert len({b["seed"] for b in sampled}) == 5
    assert all(b["ignore_eos"] and b["max_tokens"] == 8 for b in bodies)
    assert any(b in sampled for b in settings.bodies(1))


def test_all_texts_the_same(
    settings: demo.Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    servers = Servers(monkeypatch)
    assert demo.run_demo(settings) == 0
    out, err = capsys.readouterr()
    found = results_of(settings)
    # 2 servers, 2 rounds, 6 + 8 + 16 prompts; and the one with draft depths.
    assert found["texts"] == {"prompts": 16, "compared": 121, "differ": 0, "first_difference": None}
    assert [p["ratio"] for p in found["points"]] == [2.0, 2.0, 2.0]
    assert found["sampled"] == 5
    # Two rounds with MTP of 6 prompts, 100 steps each; the warm-up's steps are not among them.
    assert [p["accept_length"] for p in found["points"]] == [1.5, 1.5, 1.5]
    for name in ("latency-throughput.png", "report.html", "results.json"):
        assert (settings.output_dir / name).stat().st_size > 0
        assert str(settings.output_dir / name) in out
    assert "concurrency 16, with MTP, round 2 of 2: 16 texts" in err
    assert "\x1b" not in out + err
    assert max(map(len, out.partition("compared")[0].splitlines())) <= 100
    assert not any(line.startswith("{") for line in out.splitlines())
    assert "\n  nextn serve\n  curl http://127.0.0.1:30000/v1/completions " in out
    assert [options[-2:] for options in servers.started] == [
        ["--speculative-num-steps", "0"],
        ["--speculative-num-steps", "2"],
    ]
    assert all("--disable-radix-cache" in options for options in servers.started)
    assert all("--cpu-isa avx2" in " ".join(options) for options in servers.started)
    assert sorted(servers.stopped) == [demo.WITH, demo.WITHOUT]


def test_automatic_depth(
    settings: demo.Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    servers = Servers(monkeypatch)
    servers.auto = True
    assert demo.run_demo(settings) == 0
    lines = capsys.readouterr().out.splitlines()
    found = [point["auto"] for point in results_of(settings)["points"]]
    assert [auto["drafting"] for auto in found] == [True, True, False]
    assert found[2] == {"drafting": False, "requests": 16, "gain": 1.0, "reason": "at 16", "tried": None}
    assert [line for line in lines if "automatic depth" in line] == [
        "automatic depth at concurrency 16: not drafting at 16 requests; "
        "drafts would make 1.00 x the tokens/s (at 16)"
    ]


def test_servers_take_turns_after_a_warm_up(settings: demo.Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    servers = Servers(monkeypatch)
    demo.run_demo(settings)
    order = [(url, concurrency, len(bodies)) for url, concurrency, bodies in servers.loads]
    turns = [
        (side, c, n)
        for c, n in ((1, 6), (4, 8), (16, 16))
        for _ in "12"
        for side in (demo.WITHOUT, demo.WITH)
    ]
    assert order == [(demo.WITHOUT, 1, 1), (demo.WITH, 1, 1), *turns]
    for (_, _, one), (_, _, other) in zip(servers.loads[2::2], servers.loads[3::2], strict=True):
        assert one == other


def test_a_text_that_differs_fails(
    settings: demo.Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def spoiled(name: str, body: Body) -> str:
        text = honest(name, body)
        return text[:-1] + "?" if name == demo.WITH and body["seed"] == 6 else text

    Servers(monkeypatch, spoiled)
    assert demo.run_demo(settings) == 1
    out = capsys.readouterr().out
    found = results_of(settings)["texts"]
    assert found["differ"] == 4  # prompt 6, in both rounds at 4 and at 16
    assert found["first_difference"]["other"].endswith("?")
    assert "4 differ" in out
    assert "prompt 6 has two texts" in out
    assert "concurrency 4, with MTP, round 1" in out


def test_a_difference_between_concurrencies_fails(
    settings: demo.Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = Servers(monkeypatch)
    # Both servers alike, but other texts once 16 requests are in flight.
    servers.text = lambda name, body: f"{body['seed']} {servers.loads[-1][1] == 16}"
    assert demo.run_demo(settings) == 1


def test_a_failing_request_shows_the_servers_last_lines(
    settings: demo.Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(name: str, body: Body) -> str:
        raise BenchError("the engine died")

    servers = Servers(monkeypatch, fail)
    with pytest.raises(BenchError, match="the engine died"):
        demo.run_demo(settings)
    assert "last words of without MTP" in capsys.readouterr().err
    assert len(servers.stopped) == 2


def test_quick_has_fewer_prompts_and_texts_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[demo.Settings] = []
    monkeypatch.setattr(demo, "run_demo", lambda settings: asked.append(settings) or 0)
    assert main(["demo"]) == main(["demo", "--quick"]) == 0
    long, quick = asked
    assert (long.max_tokens, long.num_prompts, long.rounds) == (128, 32, 2)
    assert (quick.max_tokens, quick.num_prompts, quick.rounds) == (128, 16, 1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--num-prompts", "65"], "65 prompts were requested; there are only 64"),
        (["--num-prompts", "0"], "0: it must be at least 1"),
        (["--speculative-num-steps", "0"], "0: it must be at least 1"),
    ],
)
def test_wrong_arguments(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(["demo", "--output-dir", str(tmp_path / "made"), *words])
    except SystemExit as e:
        code = e.code
    assert code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "made").exists()
