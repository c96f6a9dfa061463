"""What the server prints when it is ready."""

from __future__ import annotations

import socket

import pytest

from nextn.server.announce import announce, merge_startups, startup_lines
from nextn.server.process.messages import Ready
from nextn.server_config import ServerConfig
from nextn.stats import EngineStats

FIRST = {"weight_bytes": 2**21, "load_seconds": 0.5, "kv_tokens": 4096, "drafts": "auto"}


def test_one_engine_says_it_as_it_is() -> None:
    assert merge_startups([FIRST]) == FIRST


def test_replicas_say_it_once() -> None:
    said = merge_startups([FIRST, {**FIRST, "load_seconds": 0.75, "kv_tokens": 4000}])
    assert said == {
        "replicas": "2, each with:", "weight_bytes": 2**21, "load_seconds": 0.75,
        "kv_tokens": "4096 / 4000", "drafts": "auto",
    }  # fmt: skip
    assert [line.split("  ")[0] for line in startup_lines(said)] == [
        "replicas",
        "weight",
        "load",
        "kv tokens",
        "drafts",
    ]


def test_ranks_have_the_same_each() -> None:
    assert list(startup_lines({"ranks": 2})) == ["ranks  2, each with:"]


def test_groups_are_no_replicas() -> None:
    said = merge_startups([FIRST, FIRST], groups=True)
    assert said == {"groups": "2 (DP attention), each with:", **FIRST}


def test_the_last_line(capsys: pytest.CaptureFixture[str]) -> None:
    ready = Ready(258, 1024, None, FIRST, EngineStats())
    with socket.create_server(("127.0.0.1", 0)) as listener:
        announce(ServerConfig(), [ready], listener)
        announce(ServerConfig(dp_size=2), [ready, ready], listener)
        announce(ServerConfig(tp_size=2, dp_size=2, enable_dp_attention=True), [ready, ready], listener)
    one, two, groups = (line for line in capsys.readouterr().out.splitlines() if "is ready" in line)
    assert one.endswith("(model nextn-tiny, MTP auto drafts)")
    assert two.endswith("(model nextn-tiny, MTP auto drafts on 2 replicas)")
    assert groups.endswith("(model nextn-tiny, MTP auto drafts on 2 groups)")


@pytest.mark.parametrize(
    ("mode", "line"),
    [
        ("prefill", "prefill, transfer backend tcp, bootstrap port at [::1]:{port}"),
        ("decode", "decode, transfer backend tcp, fallback on"),
    ],
)
def test_a_part_of_requests(mode: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    config = ServerConfig(host="::1", disaggregation_mode=mode)
    ready = Ready(258, 1024, 2, {"kv_tokens": 4096}, EngineStats())
    with socket.socket() as listener, socket.socket() as bootstrap:
        for each in (listener, bootstrap):
            each.bind(("127.0.0.1", 0))
        port = bootstrap.getsockname()[1]
        announce(config, [ready], listener, bootstrap if mode == "prefill" else None)
    assert f"  disaggregation  {line.format(port=port)}\n" in capsys.readouterr().out
