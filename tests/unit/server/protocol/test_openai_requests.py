"""Request bodies: what is taken, what is refused and how it is said."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.hostile_json import json_values

from nextn.request import SamplingParams, SpeculativeParams
from nextn.server.protocol.body import parse
from nextn.server.protocol.errors import ApiError
from nextn.server.protocol.fields import prompts
from nextn.server.protocol.openai import (
    REFUSED_IN_CHAT,
    REFUSED_IN_COMPLETIONS,
    ChatRequest,
    CommonRequest,
    CompletionRequest,
)

CHAT = [{"role": "user", "content": "hi"}]


def completion(**fields: Any) -> CompletionRequest:
    return parse(json.dumps({"prompt": "x", **fields}).encode(), CompletionRequest)


def chat(**fields: Any) -> ChatRequest:
    return parse(json.dumps({"messages": CHAT, **fields}).encode(), ChatRequest)


def refusal(error: ApiError) -> dict[str, Any]:
    return json.loads(error.body)["error"]


def params(request: CommonRequest, **changes: int) -> SamplingParams:
    return request.sampling(**{"max_tokens": 8, "seed": 1, "vocab_size": 100, **changes})


def test_defaults_are_openais() -> None:
    request = completion()
    assert (request.max_tokens, request.n, request.stream, request.seed, request.stop) == (
        None, 1, False, None, [],
    )  # fmt: skip
    assert params(request) == SamplingParams(max_tokens=8, seed=1)
    assert params(request).temperature == 1.0


def test_every_sampling_field_arrives() -> None:
    fields = {
        "min_tokens": 2, "temperature": 0.5, "top_k": 7, "top_p": 0.9, "min_p": 0.1,
        "repetition_penalty": 1.1, "frequency_penalty": 0.2, "presence_penalty": -0.3, "ignore_eos": True,
    }  # fmt: skip
    for make in (completion, chat):
        got = params(make(**fields, stop_token_ids=[3, 4]))
        assert {name: getattr(got, name) for name in fields} == fields
        assert got.stop_token_ids == (3, 4)


def test_speculative_arrives() -> None:
    fields = {
        "num_steps": 3, "verify": "typical", "accept_threshold_single": 0.5, "accept_threshold_acc": 1,
    }  # fmt: skip
    assert set(fields) == set(SpeculativeParams.__dataclass_fields__)
    for make in (completion, chat):
        assert params(make(speculative=fields)).speculative == SpeculativeParams(3, "typical", 0.5, 1.0)
        assert params(make(speculative={"num_steps": None})).speculative == SpeculativeParams()
        assert params(make(speculative=False)).speculative == SpeculativeParams(num_steps=0)
        assert params(make()).speculative == SpeculativeParams()


def test_null_is_the_default() -> None:
    nulls = dict.fromkeys([*CommonRequest.model_fields, *REFUSED_IN_COMPLETIONS, "max_tokens"])
    assert completion(**nulls) == completion()
    assert chat(**nulls) == chat()


def test_unknown_keys_are_tolerated() -> None:
    assert (
        completion(metadata={"a": "b"}, store=True, bootstrap_room=None, whatever={"a": [1]}) == completion()
    )


@pytest.mark.parametrize(("given", "seed"), [(0, 0), (2**64 - 1, 2**64 - 1), (-1, 2**64 - 1)])
def test_seeds(given: int, seed: int) -> None:
    request = completion(seed=given)
    assert request.seed is not None
    assert params(request, seed=request.seed).seed == seed


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": 5.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"temperature": "warm"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"n": 0}, "n"),
        ({"n": 10**6}, "n"),
        ({"top_k": 2**40}, "top_k"),
        ({"seed": 2**64}, "seed"),
        ({"seed": -(2**63) - 1}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"stop": 5}, "stop"),
        ({"stop": ["a", 5]}, "stop"),
        ({"stop": ""}, "stop"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop_token_ids": ["a"]}, "stop_token_ids[0]"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": 3}}, "stream_options.include_usage"),
        ({"user": 5}, "user"),
        ({"speculative": True}, "speculative"),
        ({"speculative": 3}, "speculative"),
        ({"speculative": {"num_steps": "3"}}, "speculative.num_steps"),
        ({"speculative": {"num_steps": True}}, "speculative.num_steps"),
        ({"speculative": {"num_step": 3}}, "speculative.num_step"),
        ({"speculative": {"verify": 1}}, "speculative.verify"),
        ({"model": ["m"]}, "model"),
    ],
)
def test_bad_fields_are_named(fields: dict[str, Any], param: str) -> None:
    for make in (completion, chat):
        with pytest.raises(ApiError) as error:
            make(**fields)
        assert error.value.status == 400
        assert refusal(error.value)["param"] == param
        assert param in refusal(error.value)["message"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temperature": -1}, "temperature is -1.0; it must be between 0 and 100"),
        ({"top_p": 0}, "top_p is 0.0; it must be in (0, 1]"),
        ({"min_p": 2}, "min_p is 2.0"),
        ({"top_k": -2}, "top_k is -2"),
        ({"min_tokens": 9}, "min_tokens is 9; it must be between 0 and max_tokens"),
        ({"frequency_penalty": 3}, "frequency_penalty is 3.0"),
        ({"presence_penalty": -3}, "presence_penalty is -3.0"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0.0; it must be in (0, 2]"),
        ({"repetition_penalty": 2.1}, "repetition_penalty is 2.1; it must be in (0, 2]"),
        ({"stop_token_ids": [100]}, "stop_token_ids is (100,)"),
        ({"stop_token_ids": [10**30]}, "stop_token_ids is"),
        (
            {"speculative": {"num_steps": 17}},
            "speculative.num_steps is 17; it must be between 0 (off) and 16",
        ),
        ({"speculative": {"num_steps": -1}}, "speculative.num_steps is -1"),
        ({"speculative": {"verify": "exactly"}}, "speculative.verify is 'exactly'; it must be one of exact"),
        ({"speculative": {"accept_threshold_acc": 2}}, "speculative.accept_threshold_acc is 2.0"),
    ],
)
def test_ranges_are_the_engines(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ApiError) as error:
        params(completion(**fields))
    assert refusal(error.value)["message"].startswith(message)
    assert refusal(error.value)["param"] == message.partition(" ")[0]


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_the_limit_has_the_clients_name(name: str) -> None:
    for make in (completion, chat):
        request = make(**{name: 5})
        assert (request.limit_field, request.limit) == (name, 5)
        for value, rule in ((0, "it must be at least 1"), (-1, "it must be at least 0")):
            with pytest.raises(ApiError, match=f"^{name} is {value}; {rule}") as error:
                params(make(**{name: value}), max_tokens=value)
            assert refusal(error.value)["param"] == name
        with pytest.raises(ApiError, match=f"min_tokens is 9; it must be between 0 and {name}"):
            params(make(**{name: 5}, min_tokens=9))


def test_two_limits() -> None:
    for make in (completion, chat):
        assert make(max_tokens=5, max_completion_tokens=5).limit == 5
        with pytest.raises(ApiError, match="max_tokens is 5 and max_completion_tokens is 6") as error:
            make(max_tokens=5, max_completion_tokens=6)
        assert refusal(error.value)["param"] == "max_tokens"


@pytest.mark.parametrize(
    ("make", "fields", "message"),
    [
        (completion, {"messages": CHAT}, "this is for /v1/chat/completions; use prompt here"),
        (completion, {"text": "x"}, "this is for /generate; use prompt here"),
        (completion, {"tools": [{}]}, "this is for /v1/chat/completions"),
        (completion, {"max_new_tokens": 5}, "this is for /generate; use max_tokens here"),
        (chat, {"prompt": "x"}, "this is for /v1/completions; use messages here"),
        (chat, {"suffix": "x"}, "this is for /v1/completions"),
        (chat, {"sampling_params": {"n": 2}}, "this is for /generate; send its fields at the top level here"),
        (chat, {"sampling_seed": 5}, "this is for /generate; use seed here"),
    ],
)
def test_fields_of_other_endpoints(make: Any, fields: dict[str, Any], message: str) -> None:
    (name,) = fields
    with pytest.raises(ApiError) as error:
        make(**fields)
    assert (refusal(error.value)["param"], refusal(error.value)["message"]) == (name, f"{name}: {message}")
    for nothing in (None, "", [], {}):
        make(**{name: nothing})


def test_max_tokens_zero() -> None:
    with pytest.raises(ApiError, match="max_tokens is 0; it must be at least 1"):
        params(completion(), max_tokens=0)
    assert params(completion(echo=True), max_tokens=0).max_tokens == 0
    with pytest.raises(ApiError, match="max_tokens is -1; it must be at least 0"):
        params(completion(echo=True), max_tokens=-1)


@pytest.mark.parametrize("name", REFUSED_IN_COMPLETIONS)
def test_refused_in_completions(name: str) -> None:
    check_refused(name, REFUSED_IN_COMPLETIONS, completion)


@pytest.mark.parametrize("name", REFUSED_IN_CHAT)
def test_refused_in_chat(name: str) -> None:
    check_refused(name, REFUSED_IN_CHAT, chat)


def check_refused(name: str, table: dict[str, tuple[object, ...]], make: Any) -> None:
    for default in table[name]:
        assert make(**{name: default}) == make()
    with pytest.raises(ApiError, match=f"^{name} is not supported") as error:
        make(**{name: {"type": "json_object"}})
    assert refusal(error.value)["param"] == name


def test_true_is_not_one() -> None:
    with pytest.raises(ApiError, match="echo: Input should be a valid boolean"):
        chat(echo=1)
    with pytest.raises(ApiError, match="use_beam_search is not supported"):
        chat(use_beam_search=0)
    with pytest.raises(ApiError, match="logprobs: Input should be a valid integer"):
        completion(logprobs=True)
    with pytest.raises(ApiError, match="logprobs: Input should be a valid boolean"):
        chat(logprobs=1)


@pytest.mark.parametrize(
    ("fields", "asked"),
    [({}, (None, None)), ({"logprobs": 0}, (0, None)), ({"logprobs": 20, "echo": True}, (20, 20)),
     ({"echo": True}, (None, None))],
)  # fmt: skip
def test_logprobs_of_completions(fields: dict[str, Any], asked: object) -> None:
    got = params(completion(**fields))
    assert (got.logprobs, got.prompt_logprobs) == asked


@pytest.mark.parametrize(
    ("fields", "asked"),
    [({}, None), ({"logprobs": False}, None), ({"logprobs": True}, 0), ({"top_logprobs": 0}, None),
     ({"logprobs": True, "top_logprobs": 20}, 20)],
)  # fmt: skip
def test_logprobs_of_chats(fields: dict[str, Any], asked: object) -> None:
    got = params(chat(**fields))
    assert (got.logprobs, got.prompt_logprobs) == (asked, None)


@pytest.mark.parametrize(
    ("make", "fields", "param"),
    [
        (completion, {"logprobs": 21}, "logprobs"),
        (completion, {"logprobs": -1}, "logprobs"),
        (completion, {"logprobs": 1.5}, "logprobs"),
        (completion, {"top_logprobs": 1}, "top_logprobs"),
        (completion, {"echo": 1}, "echo"),
        (chat, {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        (chat, {"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        (chat, {"top_logprobs": 1}, "top_logprobs"),
    ],
)
def test_bad_logprobs_are_named(make: Any, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as error:
        make(**fields)
    assert refusal(error.value)["param"] == param
    assert refusal(error.value)["message"].startswith(param)


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'"text"', b"null", b"5", b'{"prompt": "\\ud800"}', b"\xff\xfe", b"[" * 100_000,
     b'{"prompt": "x", "temperature": NaN}', b'{"prompt": "x", "temperature": Infinity}',
     b'{"prompt": "x", "temperature": 1e999}', b"{}"],
    ids=lambda body: body[:20],
)  # fmt: skip
def test_not_a_request(body: bytes) -> None:
    for kind in (CompletionRequest, ChatRequest):
        with pytest.raises(ApiError) as error:
            parse(body, kind)
        assert error.value.status == 400
        assert refusal(error.value)["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("a", ["a"]), (["a", "b"], ["a", "b"]), ([1, 2], [[1, 2]]), ([[1], [2, 3]], [[1], [2, 3]]),
        ("\0", ["\0"]), (" ", [" "]),
    ],
)  # fmt: skip
def test_kinds_of_prompt(prompt: object, expected: object) -> None:
    assert prompts(prompt) == expected


@pytest.mark.parametrize(
    "prompt", ["", [], [""], ["a", ""], [[]], [[1], []], 5, True, {"a": 1}, [1.0], [True], [[True]], [["a"]],
               ["a", 1], [1, "a"], [1, [1]], [None], [{}], [[[1]]]],
    ids=str,
)  # fmt: skip
def test_bad_prompts(prompt: object) -> None:
    with pytest.raises(ApiError) as error:
        prompts(prompt)
    assert refusal(error.value)["param"] == "prompt"


def check_error(error: ApiError) -> None:
    assert error.status == 400
    assert refusal(error)["message"]


field_names = st.sampled_from(
    sorted({*CompletionRequest.model_fields, *ChatRequest.model_fields, *REFUSED_IN_CHAT})
)


@given(st.dictionaries(field_names | st.text(max_size=5), json_values, max_size=6))
def test_any_object_is_a_request_or_a_clear_error(body: dict[str, Any]) -> None:
    """Whatever is sent: no other exception, and what passes can be sent on to the engine."""
    for kind in (CompletionRequest, ChatRequest):
        try:
            request = parse(json.dumps(body).encode(), kind)
            if isinstance(request, CompletionRequest):
                prompts(request.prompt)
            seed = request.seed if request.seed is not None else 0
            msgspec.msgpack.encode(params(request, seed=seed, max_tokens=request.max_tokens or 16))
        except ApiError as error:
            check_error(error)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_request_or_a_clear_error(body: bytes) -> None:
    with pytest.raises(ApiError) as error:
        parse(body, CompletionRequest)
    assert error.value.status == 400


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"best_of": 1, "n": 2}, "best_of is 1; it must be at least n, 2"),
        ({"best_of": 2, "stream": True}, "best_of cannot be streamed"),
        ({"best_of": 0}, "best_of: Input should be greater"),
        ({"rid": ""}, "rid: "),
        ({"suffix": "x", "echo": True}, "echo and suffix cannot be combined"),
        ({"priority": 2**31}, "priority: "),
    ],
)
def test_bad_candidates_and_names(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ApiError) as error:
        completion(**fields)
    assert refusal(error.value)["message"].startswith(message)


def test_candidates_are_compared_by_their_logprobs() -> None:
    """Whether they are told or not; the prompt's need not be known for that."""
    for fields, logprobs in (
        ({}, None),
        ({"best_of": 1}, None),
        ({"best_of": 2}, 0),
        ({"best_of": 2, "logprobs": 3}, 3),
    ):
        request = completion(**fields, echo=True)
        assert params(request).logprobs == logprobs
        assert params(request).prompt_logprobs == fields.get("logprobs")
    assert (completion().candidates, completion(n=3).candidates, completion(n=1, best_of=2).candidates) == (
        1,
        3,
        2,
    )
