"""The engine in-process: options by any of their names, prompts in vLLM's forms, chats, vLLM's results.

It refuses what HTTP refuses, with the same words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from support.scripted_socket import ScriptedSocket, app_of

from nextn import LLM, SamplingParams
from nextn.config import EMBEDDED, EngineConfig, model_folder
from nextn.draft import AUTO_STEPS
from nextn.llm import Completion
from nextn.llm_inputs import DEFAULT_MAX_TOKENS, engine_config
from nextn.request import SpeculativeParams
from nextn.server.monitoring.metrics import Metrics
from nextn.server.process.engine_client import EngineClient
from nextn.server.process.messages import Ready
from nextn.server_config import ServerConfig
from nextn.stats import EngineStats
from nextn.tokenizer.tokenizer import Tokenizer

CONTEXT = 120
GREEDY = SamplingParams(max_tokens=6, temperature=0)
USER = {"role": "user", "content": "import os"}


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(EMBEDDED, threads=1, max_model_len=CONTEXT, speculative_num_steps=1)


def texts(done: list[Completion]) -> list[str]:
    return [each.text for each in done]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {}),
        ({"model": "a"}, {"model_path": "a"}),
        ({"model_path": Path("a")}, {"model_path": "a"}),
        ({"max_model_len": 64, "seed": 3}, {"context_length": 64, "random_seed": 3}),
        ({"max_num_seqs": 2, "block_size": 8}, {"max_running_requests": 2, "page_size": 8}),
        ({"gpu_memory_utilization": 0.5}, {"mem_fraction_static": 0.5}),
        ({"mem_fraction_static": 1}, {"mem_fraction_static": 1}),
        ({"num_speculative_tokens": "auto"}, {"speculative_num_steps": AUTO_STEPS}),
        ({"enable_prefix_caching": False}, {"disable_radix_cache": True}),
        ({"constrained_json_disable_any_whitespace": True}, {}),
        ({"expert_parallel_size": 1, "trust_remote_code": True, "enable_lora": False}, {}),
        ({"tensor_parallel_size": 2}, {"tp_size": 2}),
        ({"enforce_eager": True, "swap_space": 4, "quantization": None}, {"disable_cuda_graph": True}),
        ({"threads": None}, {}),
    ],
    ids=str,
)
def test_options(options: dict[str, Any], expected: dict[str, Any]) -> None:
    assert engine_config(options) == EngineConfig(**expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_model_length": 5}, r"^unknown option 'max_model_length'; did you mean 'max_model_len'\?$"),
        ({"abracadabra": 5}, "^unknown option 'abracadabra'; see docs/options.md$"),
        ({"pipeline_parallel_size": 2}, r"^pipeline_parallel_size=2 is not supported: nextn runs ranks "),
        (
            {"expert_parallel_size": 2},
            "^--ep-size is 2: it must divide --tp-size, which is 1; change one of ",
        ),
        ({"enable_lora": True}, "^enable_lora=True is not supported: LoRA adapters are not served$"),
        ({"port": 80}, "^port is an option of nextn serve; LLM has no server$"),
        ({"threads": "two"}, "^threads is 'two'; it must be int or None$"),
        ({"threads": True}, "^threads is True; it must be int or None$"),
        ({"check_integrity": 1}, "^check_integrity is 1; it must be bool$"),
        ({"seed": 1, "random_seed": 2}, "^seed and random_seed are the same option; leave one of them out$"),
        ({"page_size": 0}, "^--page-size is 0: it must be between 1 and 1024$"),
    ],
    ids=str,
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LLM(**options)


def test_two_models() -> None:
    with pytest.raises(ValueError, match="model and model_path are the same option"):
        LLM("a", model_path="b")


def test_names_of_the_model(llm: LLM) -> None:
    expected = texts(llm.generate("import os\n", GREEDY))
    for options in ({"model": EMBEDDED}, {"model_path": EMBEDDED}, {"model": model_folder(EMBEDDED)}):
        assert (
            texts(LLM(threads=1, speculative_num_steps=0, **options).generate("import os\n", GREEDY))
            == expected
        )


def test_forms_of_prompts(llm: LLM) -> None:
    ids = llm.tokenizer.encode("import os\n")
    (one,) = llm.generate("import os\n", GREEDY)
    assert (one.prompt, one.prompt_token_ids) == ("import os\n", ids)
    for prompt in (
        ids, tuple(ids), np.array(ids), {"prompt_token_ids": ids}, {"prompt": "import os\n"},
        {"prompt_token_ids": ids, "prompt": "import os\n"}, {"prompt_token_ids": np.array(ids)},
    ):  # fmt: skip
        for given in (prompt, [prompt]):
            (done,) = llm.generate(given, GREEDY)
            assert (done.prompt_token_ids, done.text) == (ids, one.text)
    many = llm.generate(["def", ids, {"prompt": "import os\n"}], GREEDY)
    assert [each.prompt for each in many] == ["def", None, "import os\n"]
    assert texts(many)[1:] == [one.text] * 2
    assert texts(llm.generate([[5], np.array([6])], GREEDY)) == texts(llm.generate([[5], [6]], GREEDY))
    assert llm.generate([]) == []


def test_results_as_vllms(llm: LLM) -> None:
    params = SamplingParams(max_tokens=6, temperature=0, logprobs=1)
    (done,) = llm.generate("import os\n", params)
    (output,) = done.outputs
    assert (output.index, output.text, output.token_ids) == (0, done.text, done.token_ids)
    assert (output.finish_reason, output.stop_reason) == ("length", None)
    assert output.cumulative_logprob == pytest.approx(sum(each.logprob for each in done.logprobs or []))
    assert llm.generate("import os\n", GREEDY)[0].outputs[0].cumulative_logprob is None
    stop = done.text[2:4]
    (stopped,) = llm.generate("import os\n", params, stop=stop)
    assert (stopped.outputs[0].finish_reason, stopped.outputs[0].stop_reason) == ("stop", stop)
    assert done.text.startswith(stopped.text + stop)


def test_chats(llm: LLM) -> None:
    (one,) = llm.chat([USER], GREEDY)
    assert one.prompt == "<｜begin▁of▁sentence｜>import os"
    assert one.prompt_token_ids == llm.tokenizer.encode("import os")  # one BOS
    assert texts(llm.chat([[USER], [{**USER, "content": "def"}], [USER]], GREEDY))[::2] == [one.text] * 2
    (goes_on,) = llm.chat(
        [USER, {"role": "assistant", "content": "\nim"}], GREEDY, continue_final_message=True
    )
    assert goes_on.prompt == "<｜begin▁of▁sentence｜>import os\nim"
    with pytest.raises(TypeError, match="add_generation_promt"):
        llm.chat([USER], add_generation_promt=False)  # type: ignore[call-arg]
    for wrong in ("hi", USER, 5):
        with pytest.raises(ValueError, match=r"^messages must be a list of messages or a list of such lists"):
            llm.chat(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ({}, "prompt: an object must have a prompt, which is text, or prompt_token_ids"),
        ({"prompt": 5}, "prompt: an object must have a prompt, which is text, or prompt_token_ids"),
        ({"prompt_token_ids": "ab"}, "prompt: an object must have a prompt, which is text"),
        (
            {"prompt": "a", "multi_modal_data": {}},
            "prompt: 'multi_modal_data' is not supported; leave it out",
        ),
        ({"prompt_token_ids": []}, "prompt is empty"),
        ("half \ud800", "the text has half of a UTF-16 pair"),
    ],
)
def test_prompts_that_http_does_not_have(llm: LLM, prompt: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        llm.generate(prompt, GREEDY)


def test_the_default_of_max_tokens_is_what_there_is_room_for(llm: LLM) -> None:
    assert SamplingParams().max_tokens == DEFAULT_MAX_TOKENS
    (done,) = llm.generate([5] * (CONTEXT - 3), SamplingParams(temperature=0, ignore_eos=True))
    assert len(done.token_ids) == 3


@pytest.fixture(scope="module")
def app() -> Any:
    client, tokenizer = EngineClient(), Tokenizer.from_folder(model_folder(EMBEDDED))
    socket: Any = ScriptedSocket(client, [104, 105], [1], None)
    client.attach(Ready(4096, CONTEXT, 2, {}, EngineStats()), socket)
    return app_of(ServerConfig(), Metrics(client), tokenizer)


async def said_by_http(app: Any, path: str, body: dict[str, Any]) -> str:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as http:
        answer = await http.post(path, content=json.dumps(body).encode())
    assert answer.status_code == 400, answer.text
    message = answer.json()["error"]["message"]
    assert isinstance(message, str)
    return message.partition(" (got ")[0]  # which pydantic adds


PARAMS: list[dict[str, Any]] = [
    {"temperature": -1.0}, {"temperature": 100.5}, {"top_p": 0.0}, {"top_p": 1.5}, {"top_k": -2},
    {"min_p": 2.0},
    {"repetition_penalty": 0.0}, {"frequency_penalty": 3.0}, {"presence_penalty": -3.0}, {"min_tokens": 9},
    {"min_tokens": -1}, {"max_tokens": CONTEXT}, {"max_tokens": -1}, {"logit_bias": {5: 101.0}},
    {"logit_bias": {4096: 1.0}}, {"speculative": SpeculativeParams(num_steps=17)},
    {"speculative": SpeculativeParams(verify="exactly")},
]  # fmt: skip


@pytest.mark.parametrize("fields", PARAMS, ids=str)
async def test_bad_sampling_parameters(llm: LLM, app: Any, fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError) as error:
        llm.generate("import os", SamplingParams(**{"max_tokens": 8, **fields}))
    body = {"max_tokens": 8, **fields}
    if "speculative" in body:
        asked = body["speculative"]
        body["speculative"] = {"num_steps": asked.num_steps, "verify": asked.verify}
    assert str(error.value) == await said_by_http(app, "/v1/completions", {"prompt": "import os", **body})


PROMPTS: list[Any] = [
    "", [[]], [4096], [[5], [-1]], [5] * CONTEXT, [5] * (CONTEXT + 1), "import os\n" * CONTEXT,
    [5.5], [True], [[5.5]], [[True]], 5, ["a", ""], ["a", 5], [5, "a"],
]  # fmt: skip


@pytest.mark.parametrize("prompt", PROMPTS, ids=lambda prompt: ascii(prompt)[:20])
async def test_bad_prompts(llm: LLM, app: Any, prompt: Any) -> None:
    with pytest.raises(ValueError) as error:
        llm.generate(prompt, GREEDY)
    message = await said_by_http(app, "/v1/completions", {"prompt": prompt, "max_tokens": 6})
    assert str(error.value) == message


@pytest.mark.parametrize(
    "messages",
    [
        [], [{"role": "wizard", "content": "a"}], [{"role": "user"}], [{"role": "tool", "content": "a"}],
        [{"role": "user", "content": [{"type": "image_url"}]}], [{**USER, "name": "Ann"}],
        [{**USER, "content": "import os\n" * CONTEXT}], ["hi"], [5],
    ],
    ids=lambda messages: str(messages)[:40],
)  # fmt: skip
async def test_bad_chats(llm: LLM, app: Any, messages: list[Any]) -> None:
    with pytest.raises(ValueError) as error:
        llm.chat(messages, GREEDY)
    said = await said_by_http(app, "/v1/chat/completions", {"messages": messages, "max_tokens": 6})
    assert str(error.value).partition(" (got ")[0] == said


@pytest.mark.parametrize("stop", ["", ["a", ""], ["a"] * 17, [5]], ids=str)
async def test_bad_stop_strings(llm: LLM, app: Any, stop: Any) -> None:
    with pytest.raises(ValueError) as error:
        llm.generate("a", GREEDY, stop)
    assert str(error.value) == await said_by_http(app, "/v1/completions", {"prompt": "a", "stop": stop})
