"""Log-probabilities and echo through the openai client and as lm-eval asks for them, with MTP and without."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from support.checkpoints import tiny_config
from support.server_process import ServerProcess
from support.small_tokenizer import write_small_tokenizer

from nextn.tokenizer.tokenizer import Tokenizer

VOCAB = 258  # single bytes, BOS and EOS
PROMPT = "def f(x):"
OPTIONS = ("--port", "0", "--threads", "1", "--check-integrity", "--kv-cache-tokens", "2048")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = write_small_tokenizer(tmp_path_factory.mktemp("checkpoint") / "random")
    (folder / "config.json").write_text(json.dumps(tiny_config(vocab_size=VOCAB)))
    return str(folder)


def serve(checkpoint: str, drafts: int, *options: str) -> ServerProcess:
    words = ["--model-path", checkpoint, "--load-format", "dummy", "--speculative-num-steps", str(drafts)]
    return ServerProcess(["-m", "nextn", "serve", *words, *OPTIONS, *options])


@pytest.fixture(scope="module")
def drafting(checkpoint: str) -> Iterator[ServerProcess]:
    with serve(checkpoint, 3, "--chunked-prefill-size", "24", "--max-running-requests", "8") as server:
        yield server


@pytest.fixture(scope="module")
def plain(checkpoint: str) -> Iterator[ServerProcess]:
    with serve(checkpoint, 0) as server:
        yield server


@pytest.fixture(scope="module")
def client(drafting: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=drafting.url + "/v1", api_key="none", max_retries=0) as made:
        yield made


def complete(server: ServerProcess, **fields: Any) -> list[dict[str, Any]]:
    response = httpx.post(server.url + "/v1/completions", json=fields, timeout=60)
    assert response.status_code == 200, response.text
    choices: list[dict[str, Any]] = response.json()["choices"]
    return choices


def test_completion(client: openai.OpenAI) -> None:
    (choice,) = client.completions.create(
        model="random", prompt=PROMPT, max_tokens=20, temperature=0, logprobs=3
    ).choices
    shown = choice.logprobs
    assert shown is not None
    assert shown.tokens is not None
    assert shown.token_logprobs is not None
    assert shown.top_logprobs is not None
    assert shown.text_offset is not None
    assert len(shown.tokens) == 20
    assert shown.text_offset[0] == 0
    assert max(shown.text_offset) < len(choice.text)
    for own, top in zip(shown.token_logprobs, shown.top_logprobs, strict=True):
        assert len(top) == 3
        assert own == max(top.values())  # greedy


def test_echo(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"model": "random", "temperature": 0, "logprobs": 0, "echo": True}
    alone = client.completions.create(prompt=PROMPT, max_tokens=0, **options)
    (choice,) = alone.choices
    assert (choice.text, choice.finish_reason) == (PROMPT, "length")
    assert alone.usage is not None
    assert alone.usage.completion_tokens == 0
    shown = choice.logprobs
    assert shown is not None
    assert shown.tokens == ["<bos>", *PROMPT]
    assert shown.text_offset == [0, *range(len(PROMPT))]
    assert shown.token_logprobs is not None
    assert shown.token_logprobs[0] is None
    assert all(p < 0 for p in shown.token_logprobs[1:])
    (longer,) = client.completions.create(prompt=PROMPT, max_tokens=5, **options).choices
    assert longer.text.startswith(PROMPT)
    assert longer.logprobs is not None
    assert longer.logprobs.token_logprobs is not None
    assert longer.logprobs.token_logprobs[: len(PROMPT) + 1] == shown.token_logprobs
    assert len(longer.logprobs.token_logprobs) == len(PROMPT) + 1 + 5
    (unscored,) = client.completions.create(
        model="random", prompt=PROMPT, max_tokens=5, temperature=0, echo=True
    ).choices
    assert (unscored.text, unscored.logprobs) == (longer.text, None)


def test_chat(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"max_tokens": 12, "seed": 4, "logprobs": True, "top_logprobs": 20}
    messages: Any = [{"role": "user", "content": "hi"}]
    (choice,) = client.chat.completions.create(model="random", messages=messages, **options).choices
    assert choice.logprobs is not None
    content = choice.logprobs.content
    assert content is not None
    assert b"".join(bytes(c.bytes or []) for c in content).decode(errors="replace") == choice.message.content
    for entry in content:
        assert len(entry.top_logprobs) == 20
        assert all(
            a.logprob >= b.logprob for a, b in zip(entry.top_logprobs, entry.top_logprobs[1:], strict=False)
        )
        assert 0 < sum(math.exp(t.logprob) for t in entry.top_logprobs) < 1
    streamed = []
    for chunk in client.chat.completions.create(model="random", messages=messages, stream=True, **options):
        if chunk.choices[0].logprobs is not None:
            streamed += chunk.choices[0].logprobs.content or []
    assert [c.model_dump() for c in streamed] == [c.model_dump() for c in content]


BODIES: list[dict[str, Any]] = [
    {"prompt": PROMPT, "max_tokens": 30, "temperature": 0, "logprobs": 2},
    {"prompt": PROMPT, "max_tokens": 30, "seed": 1, "logprobs": 0, "echo": True, "n": 2},
    {"prompt": ["a", "b" * 60], "max_tokens": 20, "seed": 2, "logprobs": 20, "echo": True, "top_p": 0.9},
    {"prompt": [0, 40, 41], "max_tokens": 60, "seed": 3, "logprobs": 1, "stop": ["e", "a"], "echo": True},
    {"prompt": [[0, 40, 200], [0, 5]], "max_tokens": 60, "seed": 4, "logprobs": 1,
     "stop_token_ids": list(range(100, 140))},
]  # fmt: skip


@pytest.mark.parametrize("body", BODIES, ids=lambda body: json.dumps(body)[:60])
def test_the_same_with_mtp_and_streamed(
    drafting: ServerProcess, plain: ServerProcess, body: dict[str, Any]
) -> None:
    expected = complete(plain, **body)
    with ThreadPoolExecutor(4) as pool:
        for choices in pool.map(lambda _: complete(drafting, **body), range(4)):
            assert choices == expected
    for choice in expected:
        shown = choice["logprobs"]
        assert len({len(values) for values in shown.values()}) == 1
        assert shown["text_offset"] == sorted(shown["text_offset"])
        assert all(offset <= len(choice["text"]) for offset in shown["text_offset"])
    response = httpx.post(drafting.url + "/v1/completions", json=body | {"stream": True}, timeout=60)
    events = [json.loads(e.removeprefix("data: ")) for e in response.text.split("\n\n")[:-2]]
    for index, choice in enumerate(expected):
        parts = [c for e in events for c in e["choices"] if c["index"] == index]
        assert "".join(c["text"] for c in parts) == choice["text"]
        for name, values in choice["logprobs"].items():
            assert [v for c in parts if c["logprobs"] for v in c["logprobs"][name]] == values
        assert parts[-1]["finish_reason"] == choice["finish_reason"]


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_as_lm_eval_asks(drafting: ServerProcess, max_tokens: int) -> None:
    """Batches of token ids of different lengths; the score of a continuation is the sum of its tokens'."""
    prompts = [[0, *range(10, 10 + n)] for n in (3, 60, 1, 17)]
    body: dict[str, Any] = {
        "model": "random", "prompt": prompts, "temperature": 0, "logprobs": 1, "seed": 1234, "echo": True,
        "max_tokens": max_tokens,
    }  # fmt: skip
    choices = complete(drafting, **body)
    assert [c["index"] for c in choices] == [0, 1, 2, 3]
    for prompt, choice in zip(prompts, choices, strict=True):
        shown = choice["logprobs"]
        assert len(shown["tokens"]) == len(prompt) + max_tokens
        assert shown["token_logprobs"][0] is None
        assert shown["top_logprobs"][0] is None
        for own, top in zip(shown["token_logprobs"][1:], shown["top_logprobs"][1:], strict=True):
            assert own <= max(top.values())
        # The same whether asked for alone, or of a longer prompt.
        (alone,) = complete(drafting, **{**body, "prompt": [prompt]})
        assert alone["logprobs"] == shown
        (longer,) = complete(drafting, **{**body, "prompt": [*prompt, 5, 6]})
        assert longer["logprobs"]["token_logprobs"][: len(prompt)] == shown["token_logprobs"][: len(prompt)]


def test_an_end_token_is_an_entry_after_an_echo(drafting: ServerProcess, checkpoint: str) -> None:
    body: dict[str, Any] = {"prompt": [[0, 50, 51]], "temperature": 0, "max_tokens": 1, "logprobs": 1}
    (choice,) = complete(drafting, **body, echo=True)
    (last,) = complete(drafting, **body)
    names = Tokenizer.from_folder(checkpoint).token_names
    (token,) = (i for i in range(VOCAB) if names[i] == last["logprobs"]["tokens"][0])
    (ended,) = complete(drafting, **body, echo=True, stop_token_ids=[token])
    assert ended["finish_reason"] == "stop"
    assert ended["text"] == choice["text"][: choice["logprobs"]["text_offset"][-1]]
    assert ended["logprobs"] == choice["logprobs"]
    (silent,) = complete(drafting, **body, stop_token_ids=[token])
    assert silent["logprobs"]["tokens"] == []


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("completions", {"logprobs": 21}, "logprobs"),
        ("completions", {"logprobs": -1}, "logprobs"),
        ("completions", {"max_tokens": 0}, "max_tokens"),
        ("chat/completions", {"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ("chat/completions", {"top_logprobs": 2}, "top_logprobs"),
        ("chat/completions", {"logprobs": 3}, "logprobs"),
    ],
)
def test_out_of_range(drafting: ServerProcess, path: str, fields: dict[str, Any], param: str) -> None:
    text = {"prompt": "x"} if path == "completions" else {"messages": [{"role": "user", "content": "x"}]}
    response = httpx.post(f"{drafting.url}/v1/{path}", json=text | fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


LONG_PROMPT = "def shared(x):\n    return x\n" * 8
COMPUTED = ("nextn:prompt_tokens_total", "nextn:cached_tokens_total")


def computed(server: ServerProcess) -> float:
    """Prompt tokens that did not come from the prefix cache."""
    lines = httpx.get(server.url + "/metrics").text.splitlines()
    metrics = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    prompt, cached = (float(metrics[name]) for name in COMPUTED)
    return prompt - cached


@pytest.mark.parametrize("most", [0, 6])
@pytest.mark.parametrize("stream", [False, True])
def test_choices_share_a_prompt_and_its_scores(
    drafting: ServerProcess, plain: ServerProcess, most: int, stream: bool
) -> None:
    """More of them than run at once, on one server; the other runs all together and has no drafts."""
    prompt = f"{LONG_PROMPT}{most}{stream}"
    length = len(prompt) + 1
    fields: dict[str, Any] = {"max_tokens": most, "echo": True, "logprobs": 2, "seed": 3, "ignore_eos": True}
    before = computed(drafting)
    if stream:
        shown = streamed(drafting, 12, prompt=prompt, n=12, **fields)
    else:
        shown = [(c["text"], c["logprobs"]) for c in complete(drafting, prompt=prompt, n=12, **fields)]
    # What is computed again is what the cache cannot know: the last page, or all but one of it.
    assert computed(drafting) - before <= length + (12 * 16 if most else 0)
    assert shown == [(c["text"], c["logprobs"]) for c in complete(plain, prompt=prompt, n=12, **fields)]
    assert {len(logprobs["tokens"]) for _, logprobs in shown} == {length + most}
    assert all(text.startswith(prompt) for text, _ in shown)
    # Twice the same prompt in one request is as good as n = 2.
    before = computed(plain)
    twice = complete(plain, prompt=[prompt, prompt], **fields)
    assert computed(plain) - before <= length + (16 if most else 0)
    assert [(c["text"], c["logprobs"]) for c in twice] == [shown[0], shown[0]]


def streamed(server: ServerProcess, count: int, **fields: Any) -> list[tuple[str, dict[str, Any]]]:
    """Text and log-probabilities of each choice, its chunks put together."""
    found: list[tuple[str, dict[str, Any]]] = [("", {}) for _ in range(count)]
    answer = httpx.post(server.url + "/v1/completions", json={**fields, "stream": True}, timeout=60)
    for event in answer.text.removesuffix("data: [DONE]\n\n").strip().split("\n\n"):
        (choice,) = json.loads(event.removeprefix("data: "))["choices"]
        text, shown = found[choice["index"]]
        for name, values in (choice["logprobs"] or {}).items():
            shown[name] = shown.get(name, []) + values
        found[choice["index"]] = text + choice["text"], shown
    return found


def test_the_native_endpoint_shares_them_too(drafting: ServerProcess, plain: ServerProcess) -> None:
    body = {
        "text": LONG_PROMPT + "native",
        "sampling_params": {"n": 6, "max_new_tokens": 4, "sampling_seed": 3, "ignore_eos": True},
        "return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2,
    }  # fmt: skip
    before = computed(drafting)
    answers = [httpx.post(s.url + "/generate", json=body, timeout=60).json() for s in (drafting, plain)]
    assert computed(drafting) - before <= len(LONG_PROMPT) + 7 + 6 * 16
    shared, expected = ([(each["text"], logprobs_of(each)) for each in answer] for answer in answers)
    assert len(shared) == 6
    assert shared == expected
    assert len(shared[0][1]["input_token_logprobs"]) == len(LONG_PROMPT) + 7


def logprobs_of(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in answer["meta_info"].items() if name.endswith("logprobs")}
