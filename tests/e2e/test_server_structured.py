"""Structured output through a real server, with MTP and without: by schema, regex, choice and grammar."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema
import pytest
from openai import OpenAI
from support.server_process import ServerProcess

from nextn.config import EMBEDDED, model_folder

SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}, "is": {"enum": ["red", "blue"]}},
    "required": ["n", "is"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA, "strict": True}}
CHAT = [{"role": "user", "content": "x"}]


def post(server: ServerProcess, path: str, **body: Any) -> httpx.Response:
    return httpx.post(server.url + path, json=body, timeout=60)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": FORMAT},
        {"regex": "[ab]{3,9}(-[0-9]{2}){2}"},
        {"structured_outputs": {"choice": ["yes", "no way"]}},
        {"guided_grammar": 'start: "(" N ")"\nN: /[0-9]{1,6}/'},
    ],
    ids=lambda f: next(iter(f)),
)
def test_the_text_is_the_same_without_mtp(fake: ServerProcess, fields: Any, temperature: float) -> None:
    body = {"prompt": "x", "max_tokens": 300, "seed": 7, "temperature": temperature, **fields}
    body["response_format"] = fields.get("response_format")
    texts = []
    for speculative in (None, False, {"num_steps": 4}):
        (choice,) = post(fake, "/v1/completions", speculative=speculative, **body).json()["choices"]
        texts.append((choice["text"], choice["finish_reason"]))
    assert len(set(texts)) == 1
    text, reason = texts[0]
    if reason == "length":  # the fake model likes whitespace as well as anything
        assert "response_format" in fields
    elif "response_format" in fields:
        jsonschema.validate(json.loads(text), SCHEMA)
    elif "regex" in fields:
        assert re.fullmatch(fields["regex"], text)
    elif "structured_outputs" in fields:
        assert text in ("yes", "no way")
    else:
        assert re.fullmatch(r"\([0-9]{1,6}\)", text)


def test_openai_client(fake: ServerProcess) -> None:
    client = OpenAI(base_url=fake.url + "/v1", api_key="none")
    stream = client.chat.completions.create(
        model="fake", messages=CHAT, response_format=FORMAT, stream=True, seed=3, max_tokens=500, n=2
    )
    texts, reasons = ["", ""], {}
    for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            if choice.finish_reason:
                reasons[choice.index] = choice.finish_reason
    assert set(reasons) == {0, 1}
    for i, text in enumerate(texts):
        if reasons[i] == "stop":
            jsonschema.validate(json.loads(text), SCHEMA)
    assert "stop" in reasons.values()


def test_native(fake: ServerProcess) -> None:
    sampling = {"max_new_tokens": 50, "regex": "[0-9]{4}"}
    answer = post(fake, "/generate", text="x", sampling_params=sampling).json()
    assert re.fullmatch("[0-9]{4}", answer["text"])
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": None}


@pytest.fixture(scope="module")
def reasoner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The embedded model with </think> in its vocabulary, in place of a token that it never says."""
    folder = tmp_path_factory.mktemp("reasoner")
    for file in model_folder(EMBEDDED).iterdir():
        if file.name != "tokenizer.json":
            (folder / file.name).symlink_to(file)
    text = (model_folder(EMBEDDED) / "tokenizer.json").read_text(encoding="utf-8")
    (folder / "tokenizer.json").write_text(text.replace("<｜▁pad▁｜>", "</think>"), encoding="utf-8")
    options = ("--port", "0", "--threads", "1", "--reasoning-parser", "deepseek-r1")
    with ServerProcess(["-m", "nextn", "serve", "--model-path", str(folder), *options]) as server:
        yield server


@pytest.mark.parametrize("stream", [False, True])
def test_the_schema_holds_for_what_follows_the_reasoning(reasoner: ServerProcess, stream: bool) -> None:
    """The reasoning is free, may not end the answer, and the same with drafts and without."""
    client = OpenAI(base_url=reasoner.url + "/v1", api_key="none")
    (model,) = client.models.list().data
    fields: dict[str, Any] = {
        "model": model.id, "messages": CHAT, "response_format": FORMAT, "seed": 3, "max_tokens": 400,
        "logit_bias": {"2": 16, "1": 5},  # </think> must come, the end token may not come before
    }  # fmt: skip
    shown = []
    for speculative in (False, {"num_steps": 3}):
        extra = {"speculative": speculative}
        if stream:
            thoughts = content = ""
            for chunk in client.chat.completions.create(**fields, stream=True, extra_body=extra):
                (choice,) = chunk.choices
                thoughts += getattr(choice.delta, "reasoning_content", None) or ""
                content += choice.delta.content or ""
        else:
            (choice,) = client.chat.completions.create(**fields, extra_body=extra).choices
            thoughts, content = choice.message.reasoning_content, choice.message.content
        assert choice.finish_reason == "stop"
        shown.append((thoughts, content))
    assert shown[0] == shown[1]
    thoughts, content = shown[0]
    assert len(thoughts) > 20
    with pytest.raises(ValueError, match="Expecting value"):
        json.loads(thoughts)
    jsonschema.validate(json.loads(content), SCHEMA)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"regex": "(("}, "regex: "),
        ({"json_schema": {"type": "nothing"}}, "json_schema: "),
        ({"json_schema": {"type": "string", "not": {}}}, "json_schema: "),
        ({"ebnf": 'root ::= "a'}, "ebnf: "),
        ({"regex": "[^\\s\\S]"}, "regex: it matches no text"),
        ({"regex": "a", "guided_json": {}}, "regex and guided_json are given"),
    ],
    ids=str,
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_not_valid_is_a_400(fake: ServerProcess, fields: Any, message: str, stream: bool) -> None:
    response = post(fake, "/v1/completions", prompt=["x", "y"], max_tokens=4, stream=stream, **fields)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["message"].startswith(message)


def test_logit_bias(fake: ServerProcess) -> None:
    body = {"prompt": "x", "max_tokens": 20, "temperature": 0}
    for speculative in (None, False):
        biased = post(
            fake, "/v1/completions", logit_bias={"40": 100}, speculative=speculative, **body
        ).json()["choices"][0]
        alone = post(fake, "/v1/completions", **body).json()["choices"][0]
        assert len(set(biased["text"])) == 1
        assert biased["text"] != alone["text"]
