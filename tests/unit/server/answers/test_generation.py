"""From outputs to text: nothing of it depends on how the engine cut its steps."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
import time
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engine_socket import EngineSocket

from nextn.request import Output, SamplingParams, StepDraft, TokenLogprob
from nextn.server.answers.choice import Prompt
from nextn.server.answers.generation import Generation
from nextn.server.answers.openai import Reply, likelihood
from nextn.server.monitoring.metrics import Metrics
from nextn.server.monitoring.request_log import RequestLog
from nextn.server.monitoring.watch import Watch
from nextn.server.process.engine_client import EngineClient
from nextn.server.process.messages import (
    Abort,
    Add,
    Ready,
    Rejected,
    StepOutputs,
    decode_from_engine,
    encode,
    tokens_of,
)
from nextn.server.protocol.errors import ApiError, engine_dead
from nextn.server.protocol.openai import ChatRequest, CompletionRequest
from nextn.stats import EngineStats, SpecStats
from nextn.tokenizer.tokenizer import Tokenizer

TEXT = "héllo €uro, stop here"


def client() -> EngineClient:
    engine = EngineClient()
    engine.attach(Ready(258, 1024, 2, {}, EngineStats()), EngineSocket())
    return engine


def watch(engine: EngineClient, log: RequestLog | None = None) -> Watch:
    return Watch(Metrics(engine), log or RequestLog(None, str))


def generation(engine: EngineClient, tokenizer: Tokenizer, **options: Any) -> Generation:
    options = {"n": 1, "stop": [], "arrival": 0.0, **options}
    return Generation(
        engine, tokenizer, [Prompt([0, 5, 6], SamplingParams(), options.pop("stop"))], **options
    )


def steps(rid: str, tokens: Sequence[int], cuts: Sequence[int], reason: str | None) -> list[StepOutputs]:
    """The tokens as outputs of steps, cut into runs of these lengths, the last run as long as is left."""
    messages, at = [], 0
    for run in [*cuts, len(tokens)]:
        part = list(tokens[at : at + run])
        at += run
        last = at >= len(tokens)
        out = Output(
            rid, part, [*range(1, len(part)), 0][: len(part)], reason if last else None, cached_tokens=2
        )
        out.spec = SpecStats(verify_steps=len(messages) + 1, committed=at)
        messages.append(StepOutputs([out], EngineStats(), 0.1))
        if last:
            break
    return messages


def run(
    engine: EngineClient, reply: Reply, messages: Sequence[StepOutputs | Rejected], together: int = 1
) -> tuple[Any, list[Any]]:
    """Plays the messages, so many at once; returns the whole answer, or the chunks of a stream."""

    async def play() -> Any:
        async def whole() -> bytes:
            return await reply.whole()

        async def chunks() -> list[bytes]:
            return [chunk async for chunk in reply.chunks()]

        streaming = reply.request.stream
        answer = asyncio.ensure_future(chunks() if streaming else whole())
        await asyncio.sleep(0)
        for i, message in enumerate(messages, 1):
            engine.receive(message)
            if i % together == 0:
                await asyncio.sleep(0)
        got = await answer
        return [json.loads(chunk) for chunk in got] if streaming else json.loads(got)

    return asyncio.run(play()), engine.socket.sent  # type: ignore[union-attr]


cuts = st.lists(st.integers(1, 5), max_size=20)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(cuts=cuts, stop=st.sampled_from([[], ["stop"], ["€"], ["éllo", "o"], ["nowhere"]]))
def test_answers_do_not_depend_on_the_cuts(tokenizer: Tokenizer, cuts: list[int], stop: list[str]) -> None:
    tokens = tokenizer.encode(TEXT, add_special_tokens=False)
    answers = []
    for these in ([], cuts):
        engine = client()
        gen = generation(engine, tokenizer, stop=stop)
        reply = Reply(CompletionRequest(prompt="x"), gen, "m")
        answer, _ = run(engine, reply, steps(gen.choices[0].request.rid, tokens, these, "length"))
        answers.append((answer["choices"], answer["usage"]))
        assert engine.active == 0
    assert answers[0] == answers[1]
    (choice,), usage = answers[0]
    ends = [TEXT.index(s) for s in stop if s in TEXT]
    assert choice["text"] == TEXT[: min(ends, default=len(TEXT))]
    assert choice["finish_reason"] == ("stop" if ends else "length")
    assert usage["prompt_tokens_details"] == {"cached_tokens": 2}


@settings(max_examples=40, deadline=None, derandomize=True)
@given(cuts=cuts, chat=st.booleans())
def test_chunks_add_up(tokenizer: Tokenizer, cuts: list[int], chat: bool) -> None:
    tokens = tokenizer.encode(TEXT, add_special_tokens=False)
    engine = client()
    gen = generation(engine, tokenizer)
    request: Any = (
        ChatRequest(messages=[], stream=True) if chat else CompletionRequest(prompt="x", stream=True)
    )
    chunks, _ = run(engine, Reply(request, gen, "m"), steps(gen.choices[0].request.rid, tokens, cuts, "stop"))
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [c["finish_reason"] for c in choices] == [None] * (len(choices) - 1) + ["stop"]
    if chat:
        assert choices[0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(c["delta"].get("content", "") for c in choices) == TEXT
    else:
        assert "".join(c["text"] for c in choices) == TEXT
        assert all(c["text"] or c["finish_reason"] for c in choices)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    cuts=cuts,
    together=st.integers(1, 8),
    stop=st.sampled_from([[], ["€"], ["o"], ["here!"]]),
    keep_steps=st.booleans(),
)
def test_steps_that_come_together(
    tokenizer: Tokenizer, cuts: list[int], together: int, stop: list[str], keep_steps: bool
) -> None:
    """They are one chunk. All chunks say together what they say when each step has its own."""
    tokens = tokenizer.encode(TEXT, add_special_tokens=False)
    shown, counts = [], []
    for at_once in (1, together):
        engine = client()
        prompt = Prompt([0, 5, 6], SamplingParams(logprobs=0), stop)
        gen = Generation(engine, tokenizer, [prompt], 1, 0.0, keep_depths=True, keep_steps=keep_steps)
        rid = gen.choices[0].request.rid
        messages = steps(rid, tokens, cuts, "length")
        for i, message in enumerate(messages):
            out = message.outputs[0]
            out.logprobs = [TokenLogprob(-token / 7, []) for token in out.tokens]
            if keep_steps:
                out.step = StepDraft([7], None, [], float(i))
        request = CompletionRequest(
            prompt="x", stream=True, logprobs=0, return_token_ids=True, stream_options={"include_usage": True}
        )
        *chunks, last = run(engine, Reply(request, gen, "m"), messages, at_once)[0]
        choices = [chunk["choices"][0] for chunk in chunks]
        text = "".join(choice["text"] for choice in choices)
        shown.append(
            (
                text,
                [token for choice in choices for token in choice["token_ids"]],
                [step for choice in choices for step in choice.get("draft_steps", [])],
                [each for choice in choices for each in choice["logprobs"]["token_logprobs"]],
                [each for choice in choices for each in choice["logprobs"]["text_offset"]],
                [depth for choice in choices for name, depth in choice["draft_depths"] if name],
                choices[-1]["finish_reason"],
                last["usage"],
                gen.choices[0].spec,
                gen.choices[0].logprob,
            )
        )
        assert "".join(name for choice in choices for name, _ in choice["draft_depths"]) == text
        counts.append(len(choices))
    assert shown[0][:-1] == shown[1][:-1]
    assert shown[0][-1] == pytest.approx(shown[1][-1])
    assert counts[1] <= min(counts[0], -(-len(messages) // together))


@pytest.mark.parametrize("chat", [False, True])
def test_a_late_reader_gets_plain_tokens_as_one_chunk(tokenizer: Tokenizer, chat: bool) -> None:
    """As they come over the wire, with the figures of the last."""
    tokens = tokenizer.encode(TEXT, add_special_tokens=False)
    engine = client()
    observer = watch(engine)
    gen = generation(engine, tokenizer, observer=observer)
    messages: list[Any] = []
    for message in steps(gen.choices[0].request.rid, tokens, [3] * 20, "length"):
        (out,) = message.outputs
        plain = tokens_of(out)
        assert (plain is None) == (out.finish_reason is not None)
        sent = StepOutputs([] if plain else [out], EngineStats(), 0.1, [], [plain] if plain else [])
        messages.append(decode_from_engine(encode(sent)))
    request: Any = (
        ChatRequest(messages=[], stream=True) if chat else CompletionRequest(prompt="x", stream=True)
    )
    chunks, _ = run(engine, Reply(request, gen, "m"), messages[:-1] + messages[-1:], len(messages) - 1)
    choices = [chunk["choices"][0] for chunk in chunks]
    texts = [choice["delta"].get("content") for choice in choices] if chat else [c["text"] for c in choices]
    assert [text for text in texts if text] == [TEXT[: -len(texts[-1])], texts[-1]]
    assert gen.choices[0].spec == SpecStats(verify_steps=len(messages), committed=len(tokens))
    itl = observer.metrics.registry.get_sample_value("nextn:inter_token_latency_seconds_count")
    assert itl == len(tokens) - 3  # all but those of the first step


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    cuts=cuts, stop=st.sampled_from([[], ["€"], ["o"], ["here!"]]), end=st.sampled_from(["length", "stop"])
)
def test_draft_depths_of_a_stream(tokenizer: Tokenizer, cuts: list[int], stop: list[str], end: str) -> None:
    """They spell each chunk's text, and are those of the whole answer; "here!" holds the end back until an
    end without a token lets it go."""
    tokens = tokenizer.encode(TEXT, add_special_tokens=False)
    shown: list[list[tuple[str, int]]] = []
    for stream in (False, True):
        engine = client()
        gen = generation(engine, tokenizer, stop=stop, keep_depths=True)
        rid = gen.choices[0].request.rid
        messages = steps(rid, tokens, cuts, "length" if end == "length" else None)
        if end == "stop":
            messages.append(StepOutputs([Output(rid, [], [], "stop", 1)], EngineStats(), 0.1))
        request = CompletionRequest(prompt="x", stream=stream, return_draft_depths=True)
        found, _ = run(engine, Reply(request, gen, "m"), messages)
        choices = [chunk["choices"][0] for chunk in found] if stream else found["choices"]
        for choice in choices:
            assert "".join(text for text, _ in choice["draft_depths"]) == choice["text"]
        shown.append([(text, depth) for choice in choices for text, depth in choice["draft_depths"]])
    whole, pieces = shown
    assert len(whole) == len(gen.choices[0].tokens)
    assert [depth for _, depth in pieces[: len(whole)]] == [depth for _, depth in whole]
    assert len(pieces) - len(whole) in (0, 1)
    if len(pieces) > len(whole):  # text that was held back, of the last token
        assert pieces[-1][1] == whole[-1][1]
        assert "here".startswith(pieces[-1][0])


def test_draft_steps(tokenizer: Tokenizer) -> None:
    """Rejected drafts too; a stop string takes only a part of the last step's tokens; a tree has parents."""
    tokens = tokenizer.encode(TEXT, add_special_tokens=False)
    x, y = tokenizer.encode("xy", add_special_tokens=False)
    shown = []
    for stream in (False, True):
        engine = client()
        gen = generation(engine, tokenizer, stop=["€"], keep_steps=True)
        rid = gen.choices[0].request.rid
        messages = steps(rid, tokens, [1, 3], None)
        drafts = ([], [tokens[1], tokens[2], x], [y, tokens[4]])
        parents, accepted = (None, None, [-1, -1]), ([], [0, 1], [1])
        for i, message in enumerate(messages):
            message.outputs[0].step = StepDraft(drafts[i], parents[i], accepted[i], i + 0.5)
        request = CompletionRequest(prompt="x", stream=stream, return_draft_steps=True)
        found, _ = run(engine, Reply(request, gen, "m"), messages)
        choices = [chunk["choices"][0] for chunk in found] if stream else found["choices"]
        shown.append([step for choice in choices for step in choice["draft_steps"]])
        assert sum(step["tokens"] for step in shown[-1]) == len(gen.choices[0].tokens)
    whole, streamed = shown
    assert whole == streamed
    first, second, third = whole
    assert first == {"seconds": 0.5, "tokens": 1, "drafts": [], "accepted": []}
    names = [tokenizer.token_names[token] for token in tokens]
    assert second == {"seconds": 1.5, "tokens": 3, "drafts": [names[1], names[2], "x"], "accepted": [0, 1]}
    assert (third["drafts"], third["parents"], third["accepted"]) == (["y", names[4]], [-1, -1], [1])


def test_stop_string_ends_the_request_in_the_engine(tokenizer: Tokenizer) -> None:
    engine = client()
    observer = watch(engine)
    gen = generation(engine, tokenizer, stop=["o"], observer=observer)
    rid = gen.choices[0].request.rid
    messages = steps(rid, tokenizer.encode(TEXT, add_special_tokens=False), [8, 2], None)
    answer, sent = run(engine, Reply(CompletionRequest(prompt="x"), gen, "m"), messages)
    assert answer["choices"][0]["text"] == "héll"
    assert [type(message) for message in sent] == [Add, Abort]
    assert observer.metrics.aborted == 0  # the client got all it asked for


def test_unfinished_character_at_the_end(tokenizer: Tokenizer) -> None:
    engine = client()
    gen = generation(engine, tokenizer, keep_depths=True)
    tokens = tokenizer.encode("a€", add_special_tokens=False)[:3]
    request = CompletionRequest(prompt="x", return_draft_depths=True)
    answer, _ = run(
        engine, Reply(request, gen, "m"), steps(gen.choices[0].request.rid, tokens, [2], "length")
    )
    assert answer["choices"][0]["text"] == "a\ufffd"
    assert answer["choices"][0]["draft_depths"] == [["a", 1], ["", 0], ["\ufffd", 0]]


def test_an_end_without_a_token(tokenizer: Tokenizer) -> None:
    engine = client()
    gen = generation(engine, tokenizer)
    messages = [StepOutputs([Output(gen.choices[0].request.rid, [], [], "stop", 1)], EngineStats(), 0.1)]
    answer, _ = run(engine, Reply(CompletionRequest(prompt="x"), gen, "m"), messages)
    assert answer["choices"][0] == {
        "index": 0,
        "text": "",
        "finish_reason": "stop",
        "logprobs": None,
        "matched_stop": 1,
    }
    assert answer["usage"]["completion_tokens"] == 0


def spec_of(*steps: tuple[int, int]) -> SpecStats:
    spec = SpecStats()
    for proposed, accepted in steps:
        spec.add(proposed, accepted, accepted + 1)
    return spec


SPEC = {
    "spec_accept_rate": 0.6, "spec_accept_length": 2.0, "spec_num_correct_drafts": 3,
    "spec_num_proposed_drafts": 5, "spec_verify_ct": 3, "spec_correct_drafts_histogram": [1, 1, 1],
    "spec_lossy": False, "spec_simulated": False,
}  # fmt: skip


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("usage", [None, False, True])
@pytest.mark.parametrize("chat", [False, True])
def test_spec_tokens_details(tokenizer: Tokenizer, chat: bool, usage: bool | None, n: int) -> None:
    """Whole (None), and streamed with usage or without: they come last, and usage has them of all choices."""
    engine = client()
    gen = generation(engine, tokenizer, n=n)
    fields: dict[str, Any] = {"return_spec_tokens_details": True, "stream": usage is not None, "n": n}
    if usage:
        fields["stream_options"] = {"include_usage": True}
    request: Any = ChatRequest(messages=[], **fields) if chat else CompletionRequest(prompt="x", **fields)
    messages = []
    for choice in gen.choices:
        last = Output(choice.request.rid, [5], [0], "length", spec=spec_of((2, 0), (2, 2), (1, 1)))
        messages.append(StepOutputs([last], EngineStats(), 0.1))
    answer, _ = run(engine, Reply(request, gen, "m"), messages)
    if usage is not None:
        *chunks, answer = answer
        assert answer["choices"] == []
        assert not any("sglext" in chunk for chunk in chunks)
    assert answer["sglext"] == {"spec_tokens_details": SPEC if n == 1 else [SPEC, SPEC]}
    if usage is False:
        assert "usage" not in answer
    else:
        assert answer["usage"]["spec_details"] == {
            "verify_steps": 3 * n, "accept_length": 2.0, "proposed": [3 * n, 2 * n],
            "accepted": [2 * n, n], "histogram": [n, n, n], "lossy": False,
            "simulated": False,
        }  # fmt: skip


def test_spec_tokens_details_are_on_request(tokenizer: Tokenizer) -> None:
    engine = client()
    gen = generation(engine, tokenizer)
    answer, _ = run(
        engine,
        Reply(CompletionRequest(prompt="x"), gen, "m"),
        steps(gen.choices[0].request.rid, [5], [], "stop"),
    )
    assert "sglext" not in answer
    assert "spec_details" not in answer["usage"]


def test_a_text_that_is_nobodys_says_so_unasked(tokenizer: Tokenizer) -> None:
    engine = client()
    gen = generation(engine, tokenizer)
    spec = SpecStats(simulated=True)
    last = Output(gen.choices[0].request.rid, [5], [0], "length", spec=spec)
    messages = [StepOutputs([last], EngineStats(), 0.1)]
    answer, _ = run(engine, Reply(CompletionRequest(prompt="x"), gen, "m"), messages)
    assert answer["usage"]["spec_details"]["simulated"] is True


def test_one_line_for_each_finished_request(tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture) -> None:
    request = CompletionRequest(prompt="x")
    for level, count in ((logging.INFO, 0), (logging.DEBUG, 2)):
        engine = client()
        observer = watch(engine, RequestLog(None, tokenizer.decode))
        arrival = time.perf_counter() - 2
        gen = generation(engine, tokenizer, n=2, stop=["b"], arrival=arrival, observer=observer)
        first, second = (choice.request.rid for choice in gen.choices)
        messages = [
            StepOutputs([Output(first, [5], [0], cached_tokens=2)], EngineStats(), 0.1),
            *steps(second, tokenizer.encode("ab", add_special_tokens=False), [], None),
            StepOutputs(
                [Output(first, [6, 7], [1, 0], "length", spec=spec_of((1, 1)), cached_tokens=2)],
                EngineStats(), 0.1,
            ),
        ]  # fmt: skip
        with caplog.at_level(level, "nextn.request"):
            run(engine, Reply(request, gen, "m"), messages)
        assert len(caplog.messages) == count
    stopped, whole = caplog.messages
    assert stopped.startswith(f"Finished request, id: '{second}', #prompt-token: 3, #cached-token: 2, ")
    assert "#output-token: 2, finish reason: stop, ttft (ms): 20" in stopped
    found = re.fullmatch(
        rf"Finished request, id: '{first}', #prompt-token: 3, #cached-token: 2, #output-token: 3, "
        r"finish reason: length, ttft \(ms\): (2\d{3}\.\d), e2e \(ms\): (2\d{3}\.\d), "
        r"throughput \(token/s\): 1\.\d, accept len: 2\.00, accepted per step: \[0, 1\]",
        whole,
    )
    assert found is not None, whole
    assert float(found[1]) <= float(found[2])


@pytest.mark.parametrize("cause", ["rejected", "dead"])
def test_errors_end_all_choices(tokenizer: Tokenizer, cause: str) -> None:
    engine = client()
    gen = generation(engine, tokenizer, n=3)

    async def play() -> None:
        deltas = gen.deltas()
        first = asyncio.ensure_future(anext(deltas))
        await asyncio.sleep(0)
        if cause == "rejected":
            engine.receive(Rejected(gen.choices[1].request.rid, "no"))
        else:
            engine.fail_all(engine_dead("gone"))
        await first

    with pytest.raises(ApiError, match="no" if cause == "rejected" else "gone"):
        asyncio.run(play())
    assert engine.active == 0
    sent = engine.socket.sent  # type: ignore[union-attr]
    assert len(sent) == (3 if cause == "rejected" else 1)  # Add, and an Abort for each that went on


def test_leaving_aborts(tokenizer: Tokenizer) -> None:
    engine = client()
    observer = watch(engine)
    gen = generation(engine, tokenizer, n=2, observer=observer)

    async def play() -> None:
        working = asyncio.ensure_future(Reply(CompletionRequest(prompt="x"), gen, "m").whole())
        await asyncio.sleep(0)
        assert engine.active == 2
        working.cancel()
        await asyncio.wait([working])

    asyncio.run(play())
    assert engine.active == 0
    assert observer.metrics.aborted == 2
    sent = engine.socket.sent  # type: ignore[union-attr]
    assert [m.rid for m in sent[1:]] == [c.request.rid for c in gen.choices]


def test_noise_streams(tokenizer: Tokenizer) -> None:
    prompts = [Prompt([1], SamplingParams(seed=5)), Prompt([2], SamplingParams(seed=6))]
    gen = Generation(client(), tokenizer, prompts, 2, 0.0)
    got = [(c.index, c.request.tokens, c.request.params.seed, c.request.params.stream) for c in gen.choices]
    assert got == [(0, [1], 5, 0), (1, [1], 5, 1), (2, [2], 6, 0), (3, [2], 6, 1)]


def test_a_grammar_that_cannot_go_on_is_an_error(tokenizer: Tokenizer) -> None:
    engine = client()
    gen = generation(engine, tokenizer)
    (messages,) = steps(gen.choices[0].request.rid, [5, 6], [], "error")
    messages.outputs[0].error = "the grammar allows no further token"
    messages.outputs[0].error_code = "grammar_error"
    with pytest.raises(ApiError, match="the grammar allows no further token") as error:
        run(engine, Reply(CompletionRequest(prompt="x"), gen, "m"), [messages])
    assert (error.value.status, error.value.code) == (400, "grammar_error")
    assert engine.active == 0


def test_no_room_for_its_grammar(tokenizer: Tokenizer) -> None:
    engine = client()
    gen = generation(engine, tokenizer)
    messages = Rejected(gen.choices[0].request.rid, "they wait", busy=True)
    with pytest.raises(ApiError, match="they wait") as error:
        run(engine, Reply(CompletionRequest(prompt="x"), gen, "m"), [messages])
    assert (error.value.status, error.value.code) == (503, "grammars_busy")
    assert error.value.headers["Retry-After"] == "1"


def test_likelihood_of_candidates(tokenizer: Tokenizer) -> None:
    """The token that ends a text counts: one that is nothing else is as likely as that token."""
    nothing, end, text = generation(client(), tokenizer, n=3).choices
    end.matched, end.logprob = 2, -4.0
    text.tokens, text.matched, text.logprob = [5, 6], "stop", -3.0
    assert [likelihood(choice) for choice in (nothing, end, text)] == [-math.inf, -4.0, -1.5]


def test_an_engine_that_goes_before_it_is_asked(tokenizer: Tokenizer) -> None:
    """Between the look at it and the answer's first step it may die: every choice ends, with an error."""
    engine = EngineClient()
    observer = watch(engine)

    async def ask() -> None:
        async for _ in generation(engine, tokenizer, n=2, observer=observer).deltas():
            pass

    with pytest.raises(ApiError, match="the engine is not running") as shown:
        asyncio.run(ask())
    assert shown.value.status == 503
    assert (observer.metrics.requests, observer.metrics.failed, engine.active) == (2, 2, 0)
