"""The fields by which gateways share out a request to a prefill and a decode server."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextn.disaggregation.remote import Remote
from nextn.server.protocol.body import parse
from nextn.server.protocol.errors import ApiError
from nextn.server.protocol.handoff import FAKE_HOST, ROOMS, HandedOff, counted_from
from nextn.server.protocol.native import GenerateRequest
from nextn.server.protocol.openai import ChatRequest, CompletionRequest

KINDS: list[tuple[type[HandedOff], dict[str, Any]]] = [
    (CompletionRequest, {"prompt": "x"}),
    (ChatRequest, {"messages": [{"role": "user", "content": "x"}]}),
    (GenerateRequest, {"text": "x"}),
]
ONE = {"bootstrap_room": 7, "bootstrap_host": "p", "bootstrap_port": 9}


def read(mode: str, kind: type[HandedOff], body: dict[str, Any]) -> HandedOff:
    return parse(json.dumps(body).encode(), kind).for_server(mode)


def remotes(mode: str, count: int = 1, **fields: object) -> list[Remote | None]:
    prompt = "x" if count == 1 else ["x"] * count
    return read(mode, CompletionRequest, {"prompt": prompt, **fields}).remotes(count)


@pytest.mark.parametrize(("kind", "body"), KINDS)
def test_both_servers_know_the_room(kind: type[HandedOff], body: dict[str, Any]) -> None:
    prefill, decode = (read(mode, kind, body | ONE) for mode in ("prefill", "decode"))
    assert (prefill.prefill_only, prefill.remotes(1)) == (True, [Remote(7)])
    assert (decode.prefill_only, decode.remotes(1)) == (False, [Remote(7, "p", 9)])
    plain = read("prefill", kind, body)
    assert (plain.prefill_only, plain.remotes(1)) == (False, [None])


@pytest.mark.parametrize(("kind", "body"), KINDS)
def test_servers_that_compute_all_say_so(kind: type[HandedOff], body: dict[str, Any]) -> None:
    nothing = {"bootstrap_room": None, "bootstrap_host": [None], "kv_transfer_params": {"x": 1}}
    assert read("null", kind, body | nothing).remotes(1) == [None]
    for fields in (ONE, {"bootstrap_port": 1}, {"kv_transfer_params": {"do_remote_decode": True}}):
        with pytest.raises(ApiError, match="started without --disaggregation-mode") as refused:
            read("null", kind, body | fields)
        assert (refused.value.status, refused.value.param) == (400, next(iter(fields)))


def test_several_prompts() -> None:
    assert remotes("decode", 3, bootstrap_room=5, bootstrap_host="p") == [
        Remote(5, "p", 8998), Remote(6, "p", 8998), Remote(7, "p", 8998),
    ]  # fmt: skip
    assert remotes(
        "decode", 3, bootstrap_room=[5, None, 2], bootstrap_host=["p", None, "[::1]"],
        bootstrap_port=[1, None, None], disagg_prefill_dp_rank=[None, 1, 3],
    ) == [Remote(5, "p", 1), None, Remote(2, "::1", 8998, 3)]  # fmt: skip
    assert remotes("prefill", 2, bootstrap_room=[5, 2], bootstrap_host=[FAKE_HOST, "p"]) == [None, Remote(2)]


@given(st.integers(0, ROOMS - 1), st.integers(1, 20))
def test_rooms_are_counted_alike_on_both_sides(room: int, count: int) -> None:
    rooms = counted_from(room, count)
    assert rooms[0] == room
    assert len(set(rooms)) == count
    assert all(0 <= each < ROOMS for each in rooms)
    for mode in ("prefill", "decode"):
        found = remotes(mode, count, bootstrap_room=room, bootstrap_host="p")
        assert [each.room for each in found if each is not None] == rooms


def test_the_fake_host_hands_nothing_off() -> None:
    for mode in ("prefill", "decode"):
        body = read(mode, GenerateRequest, {"text": "x", **ONE, "bootstrap_host": FAKE_HOST})
        assert (body.prefill_only, body.remotes(1)) == (False, [None])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"bootstrap_room": -1}, "bootstrap_room is -1; it must be between 0 and"),
        ({"bootstrap_room": 2**63}, "bootstrap_room is 9223372036854775808"),
        ({"bootstrap_room": True}, "bootstrap_room must be a whole number"),
        ({"bootstrap_room": "7"}, "bootstrap_room must be a whole number"),
        ({"bootstrap_room": [7, 7]}, "bootstrap_room is a list of 2; the number of prompts is 1"),
        ({"bootstrap_port": 0}, "bootstrap_port is 0"),
        ({"bootstrap_port": 65536}, "bootstrap_port is 65536"),
        ({"bootstrap_host": 1}, "bootstrap_host must be a string"),
        ({"bootstrap_host": ""}, "bootstrap_host is missing"),
        ({"disagg_prefill_dp_rank": -1}, "disagg_prefill_dp_rank is -1"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ApiError, match=message) as refused:
        remotes("decode", **{**ONE, **fields})
    assert (refused.value.status, refused.value.param) == (400, next(iter(fields)))


def test_prompts_have_rooms_of_their_own() -> None:
    with pytest.raises(ApiError, match="each prompt needs its own room"):
        remotes("prefill", 2, bootstrap_room=[7, 7])


def test_a_prefill_server_needs_no_host() -> None:
    assert remotes("prefill", bootstrap_room=7) == [Remote(7)]
    with pytest.raises(ApiError, match="bootstrap_host is missing"):
        remotes("decode", bootstrap_room=7)


@pytest.mark.parametrize(("kind", "body"), KINDS)
def test_what_vllms_gateways_pass_on(kind: type[HandedOff], body: dict[str, Any]) -> None:
    asked = {
        "do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None,
        "remote_block_ids": None, "remote_host": None, "remote_port": None,
    }  # fmt: skip
    prefill = read("prefill", kind, body | {"kv_transfer_params": asked})
    (remote,) = prefill.remotes(1)
    assert remote is not None
    assert (prefill.prefill_only, remote.host) == (True, "")
    passed_on = json.loads(json.dumps(prefill.answer_params("e", "10.0.0.1", 8998)))
    assert passed_on["do_remote_prefill"] is True
    assert passed_on["remote_block_ids"] == []
    decode = read("decode", kind, body | {"kv_transfer_params": passed_on})
    assert decode.remotes(1) == [Remote(remote.room, "10.0.0.1", 8998)]
    assert decode.answer_params("e", "h", 1) is None


def test_vllms_form_with_several_prompts() -> None:
    body = {"prompt": ["x", "y"], "kv_transfer_params": {"do_remote_decode": True}}
    prefill = read("prefill", CompletionRequest, body)
    there = prefill.remotes(2)
    params = prefill.answer_params("e", "h", 1)
    decode = read("decode", CompletionRequest, body | {"kv_transfer_params": params})
    assert [each and each.room for each in decode.remotes(2)] == [each and each.room for each in there]


@pytest.mark.parametrize(
    ("mode", "params", "name"),
    [
        ("prefill", {"do_remote_prefill": True}, "do_remote_prefill"),
        ("decode", {"do_remote_decode": True}, "do_remote_decode"),
        ("decode", {"do_remote_decode": 1}, "do_remote_decode"),
        ("decode", {"do_remote_prefill": True}, "remote_host"),
        ("decode", {"do_remote_prefill": True, "remote_host": "h"}, "remote_port"),
        ("decode", {"do_remote_prefill": True, "remote_host": "h", "remote_port": 0}, "remote_port"),
    ],
)
def test_wrong_transfer_params(mode: str, params: dict[str, Any], name: str) -> None:
    with pytest.raises(ApiError) as refused:
        remotes(mode, kv_transfer_params=params)
    assert (refused.value.status, refused.value.param) == (400, f"kv_transfer_params.{name}")


@pytest.mark.parametrize("named", [None, "", "cmpl-1", "-1", "²", "9" * 19, "9" * 30, 5])
def test_requests_of_other_engines(named: object) -> None:
    params = {"do_remote_prefill": True, "remote_host": "h", "remote_port": 1, "remote_request_id": named}
    with pytest.raises(ApiError, match="remote_request_id"):
        remotes("decode", kv_transfer_params=params)


def test_one_dialect_at_a_time() -> None:
    with pytest.raises(ApiError, match="leave one of them out"):
        remotes("prefill", bootstrap_room=1, kv_transfer_params={"do_remote_decode": True})
    with pytest.raises(ApiError, match="must be an object, not a list"):
        remotes("prefill", kv_transfer_params=[])


def test_prompts_whose_log_probabilities_go_out_are_computed_by_the_decode_server() -> None:
    """No gateway would put them together."""
    for mode in ("prefill", "decode"):
        body = {"prompt": "x", "echo": True, "logprobs": 2, **ONE}
        assert read(mode, CompletionRequest, body).remotes(1) == [None]
        assert read(mode, CompletionRequest, body | {"logprobs": None}).remotes(1) != [None]
    asked = {"kv_transfer_params": {"do_remote_decode": True}}
    prefill = read("prefill", CompletionRequest, {"prompt": "x", "echo": True, "logprobs": 2, **asked})
    assert prefill.prefill_only
    assert prefill.answer_params("e", "h", 1) is None


def test_a_prompt_alone_is_computed() -> None:
    """What an answer would be made by does not count, not even where it would be wrong with one token."""
    body = {
        "prompt": "x", "n": 3, "best_of": 4, "stop": ["a"], "stop_regex": "b", "min_tokens": 9,
        "max_tokens": 1, "regex": "(", "logprobs": 3, "echo": True, **ONE,
    }  # fmt: skip
    prefill = read("prefill", CompletionRequest, body)
    assert isinstance(prefill, CompletionRequest)
    assert (prefill.candidates, prefill.n, prefill.stop, prefill.stop_regex) == (1, 1, [], [])
    params = prefill.sampling(0, 1, 100)
    assert (params.max_tokens, params.constraint, params.prompt_logprobs) == (0, None, None)
