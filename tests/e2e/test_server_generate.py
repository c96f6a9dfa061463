"""/generate as SGLang's clients use it, on real servers."""

from __future__ import annotations

import json
from typing import Any

import httpx
from support.scripted_engine import TEXT
from support.server_process import ServerProcess

PROMPT = "def f():"  # 8 tokens and BOS
GREEDY = {"temperature": 0, "max_new_tokens": 32}


def generate(server: ServerProcess, **body: Any) -> Any:
    response = httpx.post(server.url + "/generate", json=body, timeout=60)
    assert response.status_code == 200, response.text
    return response.json()


def stream(server: ServerProcess, **body: Any) -> list[Any]:
    response = httpx.post(server.url + "/generate", json=body | {"stream": True}, timeout=60)
    assert response.headers["content-type"].startswith("text/event-stream")
    *events, done, nothing = response.text.split("\n\n")
    assert (done, nothing) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


def test_one_prompt(scripted: ServerProcess) -> None:
    answer = generate(scripted, text=PROMPT, sampling_params=GREEDY)
    assert answer["text"] == TEXT.encode()[:32].decode()
    meta = answer["meta_info"]
    assert (meta["prompt_tokens"], meta["completion_tokens"], meta["cached_tokens"]) == (9, 32, 4)
    assert meta["finish_reason"] == {"type": "length", "length": 32}
    assert meta["spec_correct_drafts_histogram"] == [0, 1, 10]
    assert (meta["spec_verify_ct"], meta["spec_num_correct_drafts"]) == (11, 21)
    *parts, last = stream(scripted, text=PROMPT, sampling_params=GREEDY)
    lengths = [len(part["output_ids"]) for part in parts]
    assert lengths == sorted(set(lengths) & {*range(3, 33, 3)})  # steps that are ready together are one event
    assert last["text"] == answer["text"]
    assert last["output_ids"] == answer["output_ids"]


def test_defaults(scripted: ServerProcess) -> None:
    assert generate(scripted, text=PROMPT)["meta_info"]["completion_tokens"] == 128
    # As much as there is room for.
    assert generate(scripted, text="x" * 1000)["meta_info"]["completion_tokens"] == 23


def test_prompts_and_choices(scripted: ServerProcess) -> None:
    body: dict[str, Any] = {
        "input_ids": [[8], [9, 10]], "rid": "r",
        "sampling_params": [{"max_new_tokens": 4, "n": 2, "sampling_seed": 0}, {"max_new_tokens": 6, "n": 2}],
    }  # fmt: skip
    answers = generate(scripted, **body)
    assert [(a["meta_info"]["id"], a["meta_info"]["completion_tokens"]) for a in answers] == [
        ("r_0_0", 4), ("r_0_1", 4), ("r_1_0", 6), ("r_1_1", 6),
    ]  # fmt: skip
    assert [a["text"] for a in answers[:2]] == [TEXT[:4], TEXT[1:5]]
    lasts = {chunk["index"]: chunk for chunk in stream(scripted, **body)}
    assert [lasts[i]["meta_info"]["completion_tokens"] for i in range(4)] == [4, 4, 6, 6]


def test_speculation_per_request(scripted: ServerProcess) -> None:
    texts = set()
    for speculative, histogram in [(None, [0, 1, 10]), (False, [32]), ({"num_steps": 1}, [0, 16])]:
        answer = generate(scripted, text=PROMPT, sampling_params=GREEDY, speculative=speculative)
        assert answer["meta_info"]["spec_correct_drafts_histogram"] == histogram
        texts.add(answer["text"])
    assert len(texts) == 1


def test_logprobs_of_a_real_engine(fake: ServerProcess) -> None:
    """Those that /v1/completions gives, whatever is drafted."""
    body = {"prompt": "import os", "max_tokens": 20, "temperature": 0, "logprobs": 2, "echo": True}
    expected = httpx.post(fake.url + "/v1/completions", json=body, timeout=60).json()["choices"][0][
        "logprobs"
    ]
    for speculative in (None, False, {"num_steps": 4}):
        meta = generate(
            fake, text="import os", sampling_params={"max_new_tokens": 20, "temperature": 0},
            return_logprob=True, logprob_start_len=0, top_logprobs_num=2, return_text_in_logprobs=True,
            speculative=speculative,
        )["meta_info"]  # fmt: skip
        shown = meta["input_token_logprobs"] + meta["output_token_logprobs"]
        assert [[logprob, text] for logprob, _, text in shown] == [
            list(pair) for pair in zip(expected["token_logprobs"], expected["tokens"], strict=True)
        ]
        tops = meta["input_top_logprobs"] + meta["output_top_logprobs"]
        assert tops[0] is None
        for top, same in zip(tops[1:], expected["top_logprobs"][1:], strict=True):
            assert len(top) == 2
            assert {text: logprob for logprob, _, text in top}.items() <= same.items()
