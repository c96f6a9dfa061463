"""The body of /generate: one prompt or several, one value for all or one for each."""

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
from nextn.server.protocol.native import (
    REFUSED_IN_GENERATE,
    REFUSED_SAMPLING,
    GenerateRequest,
    NativeSampling,
    PromptParams,
)


def body(**fields: Any) -> GenerateRequest:
    return parse(json.dumps({"text": "x"} | fields).encode(), GenerateRequest)


def asked(**fields: Any) -> list[PromptParams]:
    request = body(**fields)
    return request.prompt_params(len(request.prompts()))


def params(max_tokens: int = 128, length: int = 10, **fields: Any) -> SamplingParams:
    request = body(**fields)
    return request.prompt_params(1)[0].params(length, max_tokens, 1, request.speculative, 100)


def refusal(error: ApiError) -> dict[str, Any]:
    return json.loads(error.body)["error"]


def test_defaults_are_sglangs() -> None:
    (only,) = asked()
    assert only == PromptParams(NativeSampling(), "", False, -1, 0)
    assert params() == SamplingParams(max_tokens=128, seed=1)


def test_every_field_arrives() -> None:
    same = {
        "temperature": 0.5, "top_k": 7, "top_p": 0.9, "min_p": 0.1, "repetition_penalty": 1.1,
        "frequency_penalty": 0.2, "presence_penalty": -0.3, "ignore_eos": True,
    }  # fmt: skip
    sampling = same | {"min_new_tokens": 2, "stop_token_ids": [3, 4], "stop": ["a"], "n": 2}
    got = params(sampling_params=sampling, speculative={"num_steps": 3})
    assert {name: getattr(got, name) for name in same} == same
    assert (got.min_tokens, got.stop_token_ids) == (2, (3, 4))
    assert got.speculative == SpeculativeParams(num_steps=3)
    assert params(speculative=False).speculative.num_steps == 0
    (only,) = asked(sampling_params=sampling)
    assert (only.sampling.stop, only.sampling.n) == (["a"], 2)


def test_null_is_the_default() -> None:
    names = [*GenerateRequest.model_fields, *REFUSED_IN_GENERATE]
    nulls = dict.fromkeys(name for name in names if name != "text")
    assert body(**nulls) == body()
    assert asked(return_logprob=[None], rid=[None]) == asked()
    sampling = dict.fromkeys([*NativeSampling.model_fields, *REFUSED_SAMPLING])
    assert asked(sampling_params=sampling) == asked()


@pytest.mark.parametrize(
    ("fields", "prompts", "batch"),
    [
        ({"text": "a"}, ["a"], False),
        ({"text": ["a"]}, ["a"], True),
        ({"text": ["a", "b"]}, ["a", "b"], True),
        ({"text": None, "input_ids": [1, 2]}, [[1, 2]], False),
        ({"text": None, "input_ids": [[1], [2, 3]]}, [[1], [2, 3]], True),
    ],
)
def test_prompts(fields: dict[str, Any], prompts: object, batch: bool) -> None:
    assert body(**fields).prompts() == prompts
    assert body(**fields).batch == batch


def test_one_value_for_each_prompt() -> None:
    first, second = asked(
        text=["a", "b"],
        sampling_params=[{"temperature": 0}, {"top_k": 5, "stop": "z"}],
        rid=["p", "q"],
        return_logprob=[True, False],
        logprob_start_len=[0, -1],
        top_logprobs_num=[3, 0],
    )
    assert first == PromptParams(NativeSampling(temperature=0.0), "p", True, 0, 3)
    assert second == PromptParams(NativeSampling(top_k=5, stop=["z"]), "q", False, -1, 0)
    both = asked(text=["a", "b"], sampling_params={"top_k": 2}, rid="r", return_logprob=True)
    assert [(each.sampling.top_k, each.rid, each.logprobs) for each in both] == [
        (2, "r_0", True),
        (2, "r_1", True),
    ]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, (None, None)),
        ({"return_logprob": True}, (0, None)),
        ({"return_logprob": True, "top_logprobs_num": 2}, (2, None)),
        ({"return_logprob": True, "top_logprobs_num": 2, "logprob_start_len": 0}, (2, 2)),
        ({"return_logprob": True, "logprob_start_len": 9}, (0, 0)),
        ({"return_logprob": True, "logprob_start_len": 10}, (0, None)),
        ({"top_logprobs_num": 2, "logprob_start_len": 0}, (None, None)),
    ],
)
def test_logprobs(fields: dict[str, Any], expected: object) -> None:
    got = params(**fields)
    assert (got.logprobs, got.prompt_logprobs) == expected


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"text": None}, "give either text or input_ids"),
        ({"input_ids": [1]}, "give either text or input_ids"),
        ({"text": ""}, "text is empty"),
        ({"text": ["a", ""]}, "text is empty"),
        ({"text": [1, 2]}, "text: strings go into text, token ids into input_ids"),
        ({"text": None, "input_ids": ["a"]}, "input_ids: strings go into text"),
        ({"text": None, "input_ids": "a"}, "input_ids: strings go into text"),
        ({"text": None, "input_ids": []}, "input_ids is empty"),
        ({"text": None, "input_ids": [[]]}, "input_ids is empty"),
        ({"text": 5}, "text must be a string or a list, not a number"),
        ({"sampling_params": "warm"}, "sampling_params must be an object, not a string"),
        ({"sampling_params": {"max_tokens": 5}}, "sampling_params.max_tokens is not known; leave it out"),
        ({"sampling_params": {"top_k": "5"}}, "sampling_params.top_k: Input should be a valid integer"),
        ({"sampling_params": {"custom_params": {"a": 1}}},
         "sampling_params.custom_params is not supported; leave"),
        ({"sampling_params": [{}, {}]}, "sampling_params is a list of 2; the number of prompts is 1"),
        ({"text": ["a", "b"], "sampling_params": [{}, {"n": 2}]}, "sampling_params: n must be the same"),
        ({"text": ["a", "b"], "sampling_params": [{}, {"min_p": []}]}, "sampling_params[1].min_p: "),
        ({"text": ["a", "b"], "return_logprob": [True]}, "return_logprob is a list of 1; the number of "),
        ({"return_logprob": 1}, "return_logprob must be a boolean, or a list"),
        ({"top_logprobs_num": True}, "top_logprobs_num must be a whole number"),
        ({"top_logprobs_num": 21}, "top_logprobs_num is 21; it must be between 0 and 20"),
        ({"logprob_start_len": -2}, "logprob_start_len is -2; it must be -1"),
        ({"rid": 5}, "rid must be a string"),
        ({"text": ["a", "b"], "rid": ["c", "c"]}, "rid: the ids must differ"),
        ({"image_data": "x.png"}, "image_data is not supported"),
        ({"temperature": 0}, "temperature: send it as sampling_params.temperature"),
        ({"max_tokens": 5}, "max_tokens: this is for the OpenAI endpoints; use sampling_params.max_new"),
        ({"prompt": "a"}, "prompt: this is for /v1/completions; use text or input_ids here"),
        ({"stream": 1}, "stream: Input should be a valid boolean"),
        ({"speculative": True}, "speculative: it must be an object or false"),
    ],
)  # fmt: skip
def test_bad_fields_are_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ApiError) as error:
        asked(**fields)
    assert error.value.status == 400
    assert refusal(error.value)["message"].startswith(message)
    param = refusal(error.value)["param"]
    assert message.startswith(param) or message.startswith("give either")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sampling_params": {"temperature": -1}}, "sampling_params.temperature is -1.0; it must be between"),
        ({"sampling_params": {"min_new_tokens": 200}},
         "sampling_params.min_new_tokens is 200; it must be between 0 and max_new_tokens"),
        ({"sampling_params": {"stop_token_ids": [100]}}, "sampling_params.stop_token_ids is (100,)"),
        ({"speculative": {"num_steps": 17}}, "speculative.num_steps is 17; it must be between"),
        ({"return_logprob": True, "logprob_start_len": 11}, "logprob_start_len is 11; the prompt has 10"),
    ],
)  # fmt: skip
def test_ranges_are_the_engines(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ApiError) as error:
        params(**fields)
    assert refusal(error.value)["message"].startswith(message)
    assert refusal(error.value)["param"] == message.partition(" ")[0]


@pytest.mark.parametrize("name", REFUSED_IN_GENERATE)
def test_refused(name: str) -> None:
    for default in REFUSED_IN_GENERATE[name]:
        assert body(**{name: default}) == body()
    with pytest.raises(ApiError, match=f"^{name} is not supported"):
        body(**{name: {"a": 1}})


@pytest.mark.parametrize("name", REFUSED_SAMPLING)
def test_refused_in_sampling_params(name: str) -> None:
    for default in REFUSED_SAMPLING[name]:
        assert asked(sampling_params={name: default}) == asked()
    with pytest.raises(ApiError, match=rf"^sampling_params\.{name} is not supported"):
        asked(sampling_params={name: {"a": 1}})


def check_error(error: ApiError) -> None:
    assert error.status == 400
    assert refusal(error)["message"]


fields = st.dictionaries(st.sampled_from(sorted(GenerateRequest.model_fields)), json_values, max_size=6)
sampling = st.dictionaries(st.sampled_from(sorted(NativeSampling.model_fields)), json_values, max_size=4)


@given(fields, sampling, st.sampled_from(["x", ["x", "y"]]))
def test_any_object_is_a_request_or_a_clear_error(
    fields: dict[str, Any], sampling: dict[str, Any], text: object
) -> None:
    """Whatever is sent: no other exception, and what passes can be sent on to the engine."""
    for data in (fields, fields | {"text": text, "sampling_params": sampling}):
        try:
            request = parse(json.dumps(data).encode(), GenerateRequest)
            for each in request.prompt_params(len(request.prompts())):
                msgspec.msgpack.encode(
                    each.params(5, 16, each.sampling.sampling_seed or 0, request.speculative, 100)
                )
        except ApiError as error:
            check_error(error)
