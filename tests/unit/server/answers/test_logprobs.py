"""Log-probabilities of an answer: cut as its text is, the same however it was cut into steps and chunks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engine_socket import EngineSocket
from support.scripted_socket import post

from nextn.request import Output, SamplingParams, TokenLogprob
from nextn.server.answers.choice import Prompt
from nextn.server.answers.generation import Generation
from nextn.server.answers.logprobs import PromptEntries, chat_logprobs, completion_logprobs
from nextn.server.answers.openai import Reply
from nextn.server.process.engine_client import EngineClient
from nextn.server.process.messages import PromptScores, Ready, StepOutputs, decode_from_engine, encode
from nextn.server.protocol.openai import ChatRequest, CompletionRequest
from nextn.stats import EngineStats
from nextn.tokenizer.tokenizer import Tokenizer

TEXT = "héllo €uro, stop here"
BOS, EOS = 0, 1
PROMPT, ECHO = (BOS, 5, 6), "$%"


def logprob_of(token: int) -> TokenLogprob:
    return TokenLogprob(-token / 100, [(token + 1, -0.25), (token, -token / 100)])


def answer(
    tokenizer: Tokenizer,
    request: Any,
    tokens: Sequence[int],
    cuts: Sequence[int],
    stop: Sequence[str] = (),
    reason: str = "length",
    matched: int | None = None,
    prompt: Sequence[int] = PROMPT,
    echo: str | None = None,
) -> list[Any]:
    """The choices of the answer or its chunks, the tokens cut into outputs of these lengths."""
    engine = EngineClient()
    engine.attach(Ready(258, 1024, 2, {}, EngineStats()), EngineSocket())  # type: ignore[arg-type]
    params = SamplingParams(logprobs=2, prompt_logprobs=None if echo is None else 2)
    gen = Generation(engine, tokenizer, [Prompt(list(prompt), params, stop, echo)], 1, 0.0)
    rid = gen.choices[0].request.rid
    outs, scores, at = [], [], 0
    for run in [*cuts, len(tokens) + 1]:
        part = list(tokens[at : at + run])
        out = Output(rid, part, [0] * len(part), logprobs=[logprob_of(t) for t in part])
        if at == 0 and echo is not None:
            scores = [PromptScores.pack([rid], [None, *map(logprob_of, prompt[1:])])]
        at += run
        if at >= len(tokens):
            out.finish_reason, out.matched = reason, matched
            out.matched_logprob = None if matched is None else logprob_of(matched)
        outs.append(out)
        if out.finish_reason:
            break

    async def play() -> Any:
        reply = Reply(request, gen, "m")

        async def chunks() -> list[Any]:
            return [json.loads(chunk)["choices"][0] async for chunk in reply.chunks()]

        async def whole() -> list[Any]:
            return [json.loads(await reply.whole())["choices"][0]]

        working = asyncio.ensure_future(chunks() if request.stream else whole())
        await asyncio.sleep(0)
        for i, out in enumerate(outs):
            message = StepOutputs([out], EngineStats(), 0.1, [] if i else scores)
            engine.receive(decode_from_engine(encode(message)))
            await asyncio.sleep(0)
        return await working

    return asyncio.run(play())


def together(choices: list[Any]) -> tuple[str, dict[str, list[Any]]]:
    """Text and log-probabilities of a completion, its chunks put together."""
    shown: dict[str, list[Any]] = {"text_offset": [], "token_logprobs": [], "tokens": [], "top_logprobs": []}
    for choice in choices:
        for name, values in (choice["logprobs"] or {}).items():
            shown[name] += values
    return "".join(choice["text"] for choice in choices), shown


cuts = st.lists(st.integers(1, 5), max_size=20)
STOPS: list[list[str]] = [[], ["stop"], ["€"], ["éllo", "o"], ["nowhere"], ["h"], [" here", "re"]]


@settings(max_examples=30, deadline=None, derandomize=True)
@given(cuts=cuts, stop=st.sampled_from(STOPS), stream=st.booleans(), echo=st.sampled_from([None, ECHO]))
def test_completions(
    tokenizer: Tokenizer, cuts: list[int], stop: list[str], stream: bool, echo: str | None
) -> None:
    """Every token of the text and none of what the stop string cut off, whatever the steps and chunks."""
    tokens = tokenizer.encode(TEXT, add_special_tokens=False)
    request = CompletionRequest(prompt="x", stream=stream)
    text, shown = together(answer(tokenizer, request, tokens, cuts, stop, echo=echo))
    ends = [TEXT.index(s) for s in stop if s in TEXT]
    expected = TEXT[: min(ends, default=len(TEXT))]
    assert text == (echo or "") + expected
    data = TEXT.encode()
    kept = [
        (t, len(data[:i].decode(errors="ignore"))) for i, t in enumerate(tokens[: len(expected.encode())])
    ]
    names = [tokenizer.token_names[t] for t, _ in kept]
    if echo is not None:
        assert shown["tokens"][:3] == ["<bos>", "$", "%"]
        assert shown["token_logprobs"][:3] == [None, -0.05, -0.06]
        assert shown["top_logprobs"][0] is None
        assert shown["text_offset"][:3] == [0, 0, 1]
        shown = {name: values[3:] for name, values in shown.items()}
    begin = len(echo or "")
    assert shown["tokens"] == names
    assert shown["token_logprobs"] == [-t / 100 for t, _ in kept]
    assert shown["text_offset"] == [begin + offset for _, offset in kept]
    for (token, _), top in zip(kept, shown["top_logprobs"], strict=True):
        assert top == {tokenizer.token_names[token + 1]: -0.25, tokenizer.token_names[token]: -token / 100}


@settings(max_examples=30, deadline=None, derandomize=True)
@given(cuts=cuts, stream=st.booleans())
def test_chats(tokenizer: Tokenizer, cuts: list[int], stream: bool) -> None:
    tokens = tokenizer.encode(TEXT, add_special_tokens=False)
    request = ChatRequest(messages=[], stream=stream)
    choices = answer(tokenizer, request, tokens, cuts, reason="stop", matched=EOS)
    content = [entry for choice in choices for entry in (choice["logprobs"] or {"content": []})["content"]]
    assert b"".join(bytes(entry["bytes"]) for entry in content).decode() == TEXT
    assert [entry["logprob"] for entry in content] == [-t / 100 for t in tokens]
    for token, entry in zip(tokens, content, strict=True):
        assert entry["token"] == tokenizer.token_names[token]
        assert [(t["token"], t["logprob"]) for t in entry["top_logprobs"]] == [
            (tokenizer.token_names[i], p) for i, p in logprob_of(token).top
        ]


@pytest.mark.parametrize("stream", [False, True])
def test_an_end_token_counts_only_after_an_echo(tokenizer: Tokenizer, stream: bool) -> None:
    """lm-eval asks for one token and leaves the last entry out, whatever it was."""
    request = CompletionRequest(prompt="x", stream=stream)
    text, shown = together(answer(tokenizer, request, [], [], reason="stop", matched=EOS))
    assert (text, shown["tokens"]) == ("", [])
    text, shown = together(answer(tokenizer, request, [], [], reason="stop", matched=EOS, echo=ECHO))
    assert text == ECHO
    assert shown["token_logprobs"] == [None, -0.05, -0.06, -0.01]
    assert shown["text_offset"] == [0, 0, 1, 2]


def test_a_prompt_that_ends_within_a_character(tokenizer: Tokenizer) -> None:
    prompt = tokenizer.encode("a€")[:-1]
    echo = tokenizer.decode(prompt)
    assert echo == "a\ufffd"
    tokens = tokenizer.encode("b", add_special_tokens=False)
    request = CompletionRequest(prompt="x")
    text, shown = together(answer(tokenizer, request, tokens, [], prompt=prompt, echo=echo))
    assert text == "a\ufffdb"
    assert shown["text_offset"] == [0, 0, 1, 1, 2]


def test_special_tokens_spelled_out_in_a_prompt(tokenizer: Tokenizer) -> None:
    prompt = tokenizer.encode("a<eos>b")
    assert prompt[0] == BOS
    assert prompt[2] == EOS
    for echo, offsets in (("a<eos>b", [0, 0, 1, 6]), ("ab", [0, 0, 1, 1])):
        made = PromptEntries(tokenizer, echo, prompt, [None, *map(logprob_of, prompt[1:])])
        assert [e.offset for e in (*made.entries, *made.rest)] == offsets


def test_names_of_tokens(tokenizer: Tokenizer) -> None:
    """A name for each id, all different: the completions' top_logprobs are keyed by them."""
    names = [tokenizer.token_names[i] for i in range(300)]
    assert len(set(names)) == 300
    (euro, *_) = tokenizer.encode("€", add_special_tokens=False)
    assert tokenizer.token_names[euro] == "bytes:\\xe2"
    assert tokenizer.token_names[299] == "token_id:299"
    assert tokenizer.token_names[tokenizer.encode("q", add_special_tokens=False)[0]] == "q"


def test_nothing_asked_for_nothing_told(tokenizer: Tokenizer) -> None:
    assert completion_logprobs([], tokenizer).tokens == []
    assert chat_logprobs([], tokenizer).content == []


@pytest.mark.parametrize("length", [3, 600], ids=["at once", "in a thread"])
@pytest.mark.parametrize("ended", [None, 0, 1])
def test_scores_of_a_prompt_come_once(tokenizer: Tokenizer, length: int, ended: int | None) -> None:
    """For all choices, also when the one that was first has been ended."""
    engine = EngineClient()
    engine.attach(Ready(258, 1024, 2, {}, EngineStats()), EngineSocket())  # type: ignore[arg-type]
    prompt = [BOS, *([5] * (length - 1))]
    echo = tokenizer.decode(prompt)
    params = SamplingParams(max_tokens=2, logprobs=2, prompt_logprobs=2)
    gen = Generation(engine, tokenizer, [Prompt(prompt, params, (), echo)], 3, 0.0, name="answer")
    rids = [choice.request.rid for choice in gen.choices]
    assert len({choice.request.group for choice in gen.choices}) == 1

    async def play() -> Any:
        working = asyncio.ensure_future(Reply(CompletionRequest(prompt="x", n=3), gen, "m").whole())
        await asyncio.sleep(0)
        if ended is not None:
            engine.end(f"answer-{ended}")
        scores = PromptScores.pack(rids, [None, *map(logprob_of, prompt[1:])])
        ends = [Output(rid, [6], [0], "length", logprobs=[logprob_of(6)]) for rid in rids]
        for message in (
            StepOutputs(ends[:1], EngineStats(), 0.1, [scores]),
            StepOutputs(ends[1:], EngineStats(), 0.1),
        ):
            engine.receive(decode_from_engine(encode(message)))
        return json.loads(await working)["choices"]

    for i, choice in enumerate(asyncio.run(play())):
        assert choice["finish_reason"] == ("abort" if i == ended else "length")
        if i != ended:
            shown = choice["logprobs"]
            expected = [*prompt[1:], 6]
            assert shown["token_logprobs"] == [None, *(logprob_of(t).logprob for t in expected)]
            assert (
                len(shown["tokens"]) == len(shown["text_offset"]) == len(shown["top_logprobs"]) == length + 1
            )
            assert shown["text_offset"][-1] == len(echo)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(tokens=st.lists(st.integers(0, 257), min_size=1, max_size=9), top=st.integers(0, 3))
def test_scores_unpack_to_what_was_packed(tokens: list[int], top: int) -> None:
    shown = [None, *(TokenLogprob(-t / 7, [(i, -i / 3) for i in range(top)]) for t in tokens[1:])]
    scores = PromptScores.pack(["a"], shown)
    assert (
        decode_from_engine(encode(StepOutputs([], EngineStats(), 0.1, [scores]))).scores[0].unpack() == shown
    )


@pytest.mark.parametrize("asked", [True, False])
def test_one_shape_where_there_are_none(tokenizer: Tokenizer, asked: bool) -> None:
    """An answer without a token; and chunks that have none: the first of a chat, the last that ends it."""
    stopped: dict[str, Any] = {"stop": "a", "max_tokens": 5}
    tokens = tokenizer.encode("a", False)
    lists = {"text_offset": [], "token_logprobs": [], "tokens": [], "top_logprobs": []}
    text = {"prompt": "x", "logprobs": 1 if asked else None, **stopped}
    whole = post(tokenizer, "/v1/completions", tokens, **text)
    (chunk,) = post(tokenizer, "/v1/completions", tokens, stream=True, **text)
    for each in (whole, chunk):
        assert each["choices"][0]["logprobs"] == (lists if asked else None)
    chat = {"messages": [{"role": "user", "content": "x"}], "logprobs": asked, **stopped}
    whole = post(tokenizer, "/v1/chat/completions", tokens, **chat)
    chunks = post(tokenizer, "/v1/chat/completions", tokens, stream=True, **chat)
    assert len(chunks) == 2
    for each in (whole, *chunks):
        assert each["choices"][0]["logprobs"] == ({"content": [], "refusal": None} if asked else None)
