"""`suffix`: the text goes between two, where the model has the tokens for it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.scripted_socket import post
from support.small_tokenizer import write_small_tokenizer

from nextn.server.prompts.fill_in import MARKS
from nextn.tokenizer.tokenizer import Tokenizer

BOS = 0


@pytest.fixture(scope="module")
def filling(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = write_small_tokenizer(tmp_path_factory.mktemp("filling"))
    file = folder / "tokenizer.json"
    data = json.loads(file.read_text())
    size = len(data["model"]["vocab"])
    for i, mark in enumerate(MARKS):
        data["added_tokens"].append({**data["added_tokens"][0], "id": size + i, "content": mark})
    file.write_text(json.dumps(data))
    return Tokenizer.from_folder(folder)


@pytest.mark.parametrize("stream", [False, True])
def test_the_prompt_is_in_deepseek_s_form(filling: Tokenizer, stream: bool) -> None:
    text = filling.encode("ab", add_special_tokens=False)
    begin, hole, end = (filling.token_id(mark) for mark in MARKS)
    before, after, more = (filling.encode(part, add_special_tokens=False) for part in ("x(", ")\n", "y"))
    fields: dict[str, Any] = {"prompt": ["x(", "y"], "suffix": ")\n", "return_token_ids": True}
    answers = post(filling, "/v1/completions", text, stream=stream, **fields)
    choices = [choice for each in (answers if stream else [answers]) for choice in each["choices"]]
    assert [choice["text"] for choice in choices] == ["ab", "ab"]
    assert [choice["prompt_token_ids"] for choice in sorted(choices, key=lambda c: c["index"])] == [
        [BOS, begin, *part, hole, *after, end] for part in (before, more)
    ]


def test_what_cannot_be(filling: Tokenizer, tokenizer: Tokenizer) -> None:
    for of, fields, message in (
        (
            tokenizer,
            {"prompt": "x"},
            "suffix is not supported by this model: it has no token <｜fim▁begin｜>",
        ),
        (filling, {"prompt": [5]}, "suffix needs a prompt that is text, not token ids"),
        (filling, {"prompt": "x", "echo": True}, "echo and suffix cannot be combined"),
    ):
        error = post(of, "/v1/completions", suffix="y", **fields)["error"]
        assert (error["param"], error["type"]) == ("suffix", "invalid_request_error")
        assert error["message"].startswith(message)


def test_an_empty_suffix_asks_for_nothing(tokenizer: Tokenizer) -> None:
    answer = post(tokenizer, "/v1/completions", [5], prompt=[BOS, 5], suffix="", return_token_ids=True)
    assert answer["choices"][0]["prompt_token_ids"] == [BOS, 5]
