"""A comparison with the servers and the client replaced: who is asked what and when, and how it ends."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from nextn.bench.apis import Body
from nextn.bench.client import Load, Reply
from nextn.bench.dev.sweep import run
from nextn.bench.dev.sweep.contestant import Contestant
from nextn.bench.dev.sweep.sides import SideSpec
from nextn.bench.errors import BenchError, RequestError
from nextn.bench.target import Target
from nextn.cli import main
from nextn.config import EMBEDDED, model_folder
from nextn.stats import SpecStats
from nextn.tokenizer import Tokenizer

Answer = Callable[[str, Body], str]  # of a side to a request; raises RequestError
COMMON = ["--model-path", EMBEDDED, "--disable-radix-cache"]
TOKENIZER = Tokenizer.from_folder(model_folder(EMBEDDED))


class World:
    """Stands in for the servers and the client. Started sides answer alike; side i takes 1 / (i + 1) s."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answer: Answer = lambda side, body: f"answer to {body['prompt']}"
        self.started: dict[str, list[str]] = {}
        self.stopped: list[str] = []
        self.loads: list[tuple[str, int | None, list[Body], list[float]]] = []
        self.steps: dict[str, int] = {}
        self.names: list[str] = []
        self.info: dict[str, Any] = {"disable_radix_cache": True, "engine": {"dtype": "float32"}}
        self.context: int | None = 4096
        self.not_ready: str | None = None
        for name in ("LocalServer", "meet", "read_counters", "acceptance_since", "measure_load"):
            monkeypatch.setattr(run, name, getattr(self, name))
        monkeypatch.setattr(run, "write_report", lambda results, folder: [folder / "table.md"])

    def LocalServer(self, name: str, options: Sequence[str], log: Path) -> Any:
        self.started[name] = list(options)
        log.write_text("")
        world = self

        class Server:
            def __init__(self) -> None:
                self.name, self.log, self.url = name, log, f"http://{name}"

            def wait_ready(self) -> None:
                if name == world.not_ready:
                    raise BenchError(f"the server {name} ended while starting")

            def last_lines(self) -> list[str]:
                return [f"last words of {name}"]

            def __enter__(self) -> Server:
                return self

            def __exit__(self, *_: object) -> None:
                world.stopped.append(name)

        return Server()

    async def meet(self, spec: SideSpec, url: str, tokenizer: str | None, key: str | None) -> Contestant:
        self.names.append(spec.name)
        info = self.info if spec.started else {}
        return Contestant(spec, Target(url, spec.name, TOKENIZER, key), info, self.context)

    async def read_counters(self, url: str, key: str | None) -> tuple[str, SpecStats] | None:
        if url not in self.steps:
            return None
        n = self.steps[url]
        return "nextn", SpecStats(n, [n], [n // 2], n + n // 2)

    async def acceptance_since(self, *_: object) -> None:
        return None

    async def measure_load(
        self, client: Any, api: Any, bodies: list[Body], arrivals: list[float], concurrency: int | None,
        on_outcome: Callable[[], None],
    ) -> Load:  # fmt: skip
        side = bodies[0]["model"]
        self.loads.append((side, concurrency, bodies, arrivals))
        url = str(client.base_url).rstrip("/").lower()
        self.steps = {u: n + 100 * len(bodies) * (u.lower() == url) for u, n in self.steps.items()}
        outcomes: list[Reply | RequestError] = []
        for body in bodies:
            try:
                outcomes.append(Reply(self.answer(side, body), 9, 8, 1.0, (1.25, 2.0)))
            except RequestError as e:
                outcomes.append(e)
        return Load(outcomes, 1 / (self.names.index(side) + 1))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def compare(folder: Path, *words: str) -> object:
    try:
        return main(["bench", "compare", "--output-dir", str(folder / "made"), *words])
    except SystemExit as e:
        return e.code


SMALL = ["--num-steps", "0,2", "--num-prompts", "4", "--output-len", "8"]


def test_sides_take_turns_with_the_same_prompts(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare(tmp_path, *SMALL, "--concurrency", "1,4", "--rounds", "2", "--", "--threads", "1") == 0
    out, err = capsys.readouterr()
    assert world.started == {
        "MTP off": [*COMMON, "--threads", "1", "--speculative-num-steps", "0"],
        "2 drafts": [*COMMON, "--threads", "1", "--speculative-num-steps", "2"],
    }
    turns = [(side, c, 4) for c in (1, 4) for _ in "12" for side in ("MTP off", "2 drafts")]
    warm_up = [("MTP off", 1, 1), ("2 drafts", 1, 1)]
    assert [(side, c, len(bodies)) for side, c, bodies, _ in world.loads] == warm_up + turns
    assert all(arrivals == [0.0] * len(bodies) for _, _, bodies, arrivals in world.loads)
    prompts = [[body["prompt"] for body in bodies] for _, _, bodies, _ in world.loads[2:]]
    assert all(p == prompts[0] for p in prompts)  # no side keeps a prefix cache
    found = json.loads(out.splitlines()[-1])
    assert found["texts"]["compared"] == 32
    assert (found["texts"]["prompts"], found["texts"]["differ"]) == (4, 0)
    points = found["scenarios"][0]["points"]
    assert [p["sides"]["2 drafts"]["ratio"] for p in points] == [2.0, 2.0]
    assert [p["best"] for p in points] == ["2 drafts", "2 drafts"]
    assert "code, concurrency 4, 2 drafts, round 2 of 2: 4 texts in 0.5 s, 64.0 tok/s" in err
    assert sorted(world.stopped) == ["2 drafts", "MTP off"]


def test_acceptance_is_of_the_loads_alone(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world.steps = {"http://a": 7, "http://b": 7}
    assert compare(tmp_path, "--side", "a=", "--side", "b=", "--num-prompts", "4", "--concurrency", "2") == 0
    point = json.loads(capsys.readouterr().out.splitlines()[-1])["scenarios"][0]["points"][0]
    # 3 rounds of 4 requests, 100 steps each; half of the drafts were accepted.
    assert [s["accept_length"] for s in point["sides"].values()] == [1.5, 1.5]
    assert [s["acceptance"] for s in point["sides"].values()] == [[0.5], [0.5]]


def test_arrivals_at_a_rate(world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(tmp_path, *SMALL, "--request-rate", "2,0.5", "--rounds", "2") == 0
    loads = world.loads[2:]
    assert [concurrency for _, concurrency, _, _ in loads] == [None] * 8
    slow, fast = loads[0][3], loads[4][3]
    assert slow == loads[1][3] == loads[2][3]  # in every round the same
    assert slow[0] == fast[0] == 0.0
    assert slow[-1] > fast[-1] > 0
    points = json.loads(capsys.readouterr().out.splitlines()[-1])["scenarios"][0]["points"]
    assert [p["request_rate"] for p in points] == [0.5, 2.0]


def test_a_cache_gets_new_prompts_every_round(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--num-steps", "0", "--base-url-side", "other=vllm+http://other", "--rounds", "2"]
    scenarios = ["--scenario", "code", "random", "--scale", "0.01"]
    assert compare(tmp_path, *words, *scenarios, "--concurrency", "2", "--num-prompts", "2") == 0
    loads = [[str(body["prompt"]) for body in bodies] for _, _, bodies, _ in world.loads[2:]]
    assert loads[0::2] == loads[1::2]  # both sides the same
    assert len({prompt for prompts in loads for prompt in prompts}) == 8
    code = [prompts[0].partition("\n")[2] for prompts in loads[:4]]
    assert len(set(code)) == 1  # but for their beginnings
    out = capsys.readouterr().out
    assert "in every round the prompts begin with a new line" in out
    assert "other has the same text as MTP off 8 of 8 times" in out
    assert json.loads(out.splitlines()[-1])["fresh_by"].startswith("prompts salted with ")
    assert list(world.started) == ["MTP off"]


def test_a_side_that_keeps_its_cache_gets_new_prompts_too(world: World, tmp_path: Path) -> None:
    world.info["disable_radix_cache"] = False
    assert compare(tmp_path, *SMALL, "--concurrency", "2", "--rounds", "2") == 0
    prompts = {body["prompt"] for _, _, bodies, _ in world.loads[2:] for body in bodies}
    assert len(prompts) == 8


def test_a_text_that_differs_fails(world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world.answer = lambda side, body: f"{body['prompt']} {len(world.loads) == 6}"
    assert compare(tmp_path, *SMALL, "--concurrency", "2", "--rounds", "2") == 1
    out = capsys.readouterr().out
    assert "16 texts of 4 prompts compared, 4 differ" in out
    assert "code, concurrency 2, 2 drafts, round 2: " in out
    first = json.loads(out.splitlines()[-1])["texts"]["first_difference"]
    assert (first["prompt"], first["first"][-5:], first["other"][-4:]) == (0, "False", "True")


def test_texts_of_a_server_that_runs_are_only_reported(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world.answer = lambda side, body: side
    words = ["--num-steps", "0", "--base-url-side", "other=http://other", "--num-prompts", "2"]
    assert compare(tmp_path, *words, "--concurrency", "1", "--rounds", "1") == 0
    assert "other has the same text as MTP off 0 of 2 times" in capsys.readouterr().out


def test_failures_are_counted_by_kind(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def some_fail(side: str, body: Body) -> str:
        if side == "2 drafts" and body is world.loads[-1][2][-1] and len(world.loads) > 2:
            raise RequestError("HTTP 503", "the queue is full")
        return f"{body['prompt']}"

    world.answer = some_fail
    assert compare(tmp_path, *SMALL, "--concurrency", "2", "--rounds", "3") == 1
    out, err = capsys.readouterr()
    assert "2 drafts at concurrency 2: 3 failed (HTTP 503), the first: the queue is full" in out
    found = json.loads(out.splitlines()[-1])
    assert found["failed"] == 3
    side = found["scenarios"][0]["points"][0]["sides"]["2 drafts"]
    assert (side["failed"], side["errors_by_kind"]) == (3, {"HTTP 503": 3})
    assert found["texts"]["differ"] == 0
    assert "round 3 of 3: 3 texts in 0.5 s, 48.0 tok/s, 1 failed" in err


@pytest.mark.parametrize("when", [0, 4])
def test_a_server_that_dies_ends_the_run(
    when: int, world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def dead(side: str, body: Body) -> str:
        if side == "2 drafts" and len(world.loads) > when:
            raise RequestError("ConnectError", "connection refused")
        return "text"

    world.answer = dead
    assert compare(tmp_path, *SMALL, "--concurrency", "2") == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "last words of 2 drafts" in err
    assert "last words of MTP off" not in err
    assert "connection refused" in err.splitlines()[-1]
    assert len(world.stopped) == 2


def test_a_server_that_does_not_come_up(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world.not_ready = "2 drafts"
    assert compare(tmp_path, *SMALL, "--concurrency", "2") == 1
    err = capsys.readouterr().err
    assert "last words of 2 drafts" in err
    assert "the server 2 drafts ended while starting" in err.splitlines()[-1]
    assert world.loads == []
    assert len(world.stopped) == 2


def test_seeds_where_texts_are_drawn(world: World, tmp_path: Path) -> None:
    assert compare(tmp_path, *SMALL, "--concurrency", "2", "--temperature", "0.7", "--rounds", "2") == 0
    for _, _, bodies, _ in world.loads[2:]:
        assert [(body["temperature"], body["seed"]) for body in bodies] == [(0.7, i) for i in range(4)]


def test_a_context_that_is_too_short(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world.context = 2000
    assert compare(tmp_path, *SMALL, "--concurrency", "2", "--scenario", "random") == 2
    assert (
        "needs 4000 tokens of context; the side MTP off has 2000: give --scale 0.5" in capsys.readouterr().err
    )
    assert world.loads == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--num-steps", "0"], "there is only one side (MTP off)"),
        (["--side", "a=--port 80", "--side", "b="], "the benchmark sets --port"),
        (["--base-url-side", "a=ftp://h"], "is not a URL"),
        (["--base-url-side", "a=http://h", "--base-url-side", "b=http://i", "--", "--threads", "1"],
         "--threads: options after -- are for servers started here"),
        (["--scenario", "chat"], "invalid choice: 'chat'"),
        (["--scenario", "code", "code"], "--scenario has code twice"),
        (["--scenario", "random", "--scale", "-1"], "--scale is -1.0"),
        (["--text", "random"], "the scenario code is real text"),
        (["--dataset-path", "x.json"], "--dataset-path is for --scenario sharegpt"),
        (["--concurrency", "1", "--request-rate", "1"], "not allowed with argument"),
        (["--concurrency", "1,x"], "1,x: it must be a list such as 1,4,16"),
        (["--concurrency", "1,0"], "--concurrency 0: every value must be above 0"),
        (["--num-prompts", "3"], "--num-prompts is 3; --concurrency 16 needs 16 at least"),
        (["--rounds", "0"], "0: it must be at least 1"),
        (["--temperature", "nan"], "--temperature is nan"),
    ],
)  # fmt: skip
def test_wrong_arguments(
    words: list[str], message: str, world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare(tmp_path, *words) == 2
    assert message in capsys.readouterr().err
    assert world.started == {}
    assert not (tmp_path / "made").exists()
