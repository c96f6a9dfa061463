"""Profiles of servers: by option and by endpoint, of a real engine, and of two scripted ones behind a key."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
from e2e.conftest import StartServer
from support.server_process import ServerProcess, check_ended, until
from support.two_replicas import post

from nextn.trace_file import Event, read

SERVE = (
    "-m", "nextn", "serve", "--model-path", "fake:1,1", "--port", "0", "--threads", "1",
    "--kv-cache-tokens", "4096", "--speculative-num-steps", "2", "--check-integrity",
)  # fmt: skip
BODY: dict[str, Any] = {"prompt": ["import os", "x" * 40], "max_tokens": 24, "temperature": 0}


def written(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.trace.json.gz"))


def named(events: list[Event], category: str) -> Counter[str]:
    return Counter(each["name"] for each in events if each["ph"] in "Xb" and each["cat"] == category)


def check_steps(events: list[Event], steps: int) -> None:
    """They hold a result and a commit each. One more may have been launched."""
    engine, runner = named(events, "engine"), named(events, "runner")
    assert engine["step"] == engine["result"] == engine["commit"] == steps
    assert steps <= engine["launch"] <= steps + 1
    assert steps <= runner["forward"] <= steps + 1
    spans = {
        name: sorted(
            (each["ts"], round(each["ts"] + each["dur"], 3)) for each in events if each["name"] == name
        )
        for name in ("step", "result", "commit")
    }
    for step, result, commit in zip(*spans.values(), strict=True):
        assert step[0] <= result[0] <= result[1] <= commit[0] <= commit[1] <= step[1]


def test_the_first_steps_and_those_of_a_request(tmp_path: Path) -> None:
    options = ("--profile-steps", "4", "--profile-dir", str(tmp_path / "first"))
    with ServerProcess([*SERVE, *options]) as server:
        expected = post(server, **BODY).json()["choices"]
        until(lambda: written(tmp_path / "first"))
        (path,) = written(tmp_path / "first")
        events = read(path)
        check_steps(events, 4)
        assert named(events, "HTTP")["POST /v1/completions"] == 1
        assert named(events, "server")["parse"] == 1
        assert named(events, "server")["tokenize"] == 1
        assert {"receive", "add requests", "send"} <= named(events, "engine loop").keys()
        processes = [each["args"]["name"] for each in events if each["name"] == "process_name"]
        assert processes == ["server", "engine"]
        begun = httpx.post(server.url + "/start_profile", json={"output_dir": str(tmp_path / "second")})
        assert (begun.status_code, begun.text) == (200, "Start profiling.\n")
        streamed = post(server, **BODY, stream=True).text
        assert streamed.endswith("data: [DONE]\n\n")
        answer = httpx.post(server.url + "/stop_profile").json()
        assert Path(answer["path"]).parent == tmp_path / "second"
        events = read(Path(answer["path"]))
        check_steps(events, *answer["steps"])
        found = named(events, "server")
        assert found["detokenize"] == found["send"] + 1 > 4  # the first chunk goes with the status
        requests = [each for each in events if each["name"] == "POST /v1/completions" and each["ph"] == "b"]
        assert [(each["args"]["status"], each["args"]["ended"]) for each in requests] == [(200, True)]
        assert [c["text"] for c in post(server, **BODY).json()["choices"]] == [c["text"] for c in expected]
        assert httpx.post(server.url + "/start_profile").status_code == 200  # in --profile-dir
        post(server, **BODY)
        server.process.terminate()
        check_ended(server, 0)
    assert len(written(tmp_path / "first")) == 2  # a server that ends writes what it has


def test_two_engines_behind_a_key(tmp_path: Path, start: StartServer) -> None:
    options = ("--dp-size", "2", "--device", "cpu", "--load-balance-method", "round_robin")
    with start(*options, "--api-key", "secret", SGLANG_TORCH_PROFILER_DIR=str(tmp_path)) as server:
        assert httpx.post(server.url + "/start_profile").status_code == 401
        with httpx.Client(base_url=server.url, headers={"Authorization": "Bearer secret"}) as http:
            assert http.post("/start_profile", json={"num_steps": "1000"}).status_code == 200
            assert http.post("/start_profile").json()["error"]["code"] == "profile_running"
            assert http.post("/v1/completions", json=BODY).status_code == 200
            answer = http.post("/stop_profile").json()
    assert answer["processes"] == ["server", "engine 0", "engine 1"]
    assert len(answer["steps"]) == 2
    events = read(Path(answer["path"]))
    pids = {each["pid"] for each in events if each.get("cat") == "engine loop"}
    assert len(pids) == 2
    assert json.dumps(events)


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    server = ServerProcess([*SERVE, "--profile-dir", str(tmp_path / "file")])
    assert server.wait() == 1
    (line,) = server.stderr
    assert f"--profile-dir {tmp_path / 'file'}: no file can be written there" in line
