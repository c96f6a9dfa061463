"""Properties of the readers of an answer's tokens and of a request's body, which must hold for any bytes.

Each property takes bytes. It raises AssertionError, or lets an error through that must not be raised. A
fuzzer chooses the bytes by code coverage (parsers.py); the tests draw them at random.
"""

from __future__ import annotations

import asyncio
import codecs
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from source import CALL_MARKS, TOKENIZER, Source

from nextn.server.answers.service import Service
from nextn.server.http.control import AbortRequest, SetInternalState
from nextn.server.http.tokens import DetokenizeRequest, TokenizeRequest, detokenize, tokenize
from nextn.server.parsers import reasoning
from nextn.server.parsers.answer import AnswerFormat, AnswerParser
from nextn.server.parsers.parts import Part
from nextn.server.parsers.tools import FORMATS
from nextn.server.process.engine_client import EngineClient
from nextn.server.process.messages import Ready
from nextn.server.protocol.body import Body, parse
from nextn.server.protocol.errors import ApiError
from nextn.server.protocol.native import GenerateRequest
from nextn.server.protocol.openai import ChatRequest, CompletionRequest
from nextn.server_config import ServerConfig
from nextn.stats import EngineStats
from nextn.tokenizer import TextStream

sys.path.insert(0, str(Path(__file__).parents[1] / "faults"))

from bodies import malformed
from streamed import streamed_is_whole

MARKS = (*CALL_MARKS, *reasoning.MARKERS)
# Texts that a reader can leave out of an answer: markers of calls and reasoning, and blanks around them.
DROPPED = re.compile("(?:" + "|".join(map(re.escape, (*MARKS, "function", "```json", "```"))) + r"|\s)*")
BODIES: dict[str, type[Body]] = {
    "/v1/completions": CompletionRequest,
    "/v1/chat/completions": ChatRequest,
    "/generate": GenerateRequest,
    "/set_internal_state": SetInternalState,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
    "/abort_request": AbortRequest,
}


def parsed(pieces: Sequence[str], answer_format: AnswerFormat) -> list[Part]:
    """Parses a chat's answer, given in pieces, into parts."""
    parser = AnswerParser(answer_format)
    parts = [part for piece in pieces for part in parser.push(piece)] + parser.finish()
    calls = 0
    for part in parts:
        assert part.text, part
        calls += part.kind == "call"
        assert part.call == max(0, calls - 1) or part.kind in ("reasoning", "content"), part
    return parts


def merged(parts: Sequence[Part]) -> list[Part]:
    """Joins neighbouring parts of the same kind."""
    whole: list[Part] = []
    for part in parts:
        if whole and part.kind != "call" and (whole[-1].kind, whole[-1].call) == (part.kind, part.call):
            whole[-1] = part._replace(text=whole[-1].text + part.text)
        else:
            whole.append(part)
    return whole


def parts_are_the_text(data: bytes) -> None:
    """The parts of an answer do not depend on how it is cut, and they have all of its text in order, except
    for markers. If the arguments of a call are pairs, the parser writes their JSON itself; then only the
    first property is checked."""
    source = Source(data)
    answer_format, text = source.answer_format(), source.text()
    parts = parsed([text], answer_format)
    assert merged(parsed(source.cut(text), answer_format)) == merged(parts)
    pairs = (
        answer_format.tool_parser is not None and FORMATS[answer_format.tool_parser].spelling.pair is not None
    )
    if pairs and any(part.kind == "arguments" for part in parts):
        return
    ends = {0}  # positions in the text at which the parts so far can end
    for part in parts:
        begins = {at for end in ends for at in after_marks(text, end)}
        ends = {at + len(part.text) for at in begins if text.startswith(part.text, at)}
        assert ends, (text, parts)
    assert any(len(text) in after_marks(text, end) for end in ends), (text, parts)
    if not any(mark in text for mark in MARKS):
        assert "".join(part.text for part in parts) == text


def after_marks(text: str, begin: int) -> list[int]:
    return [at for at in range(begin, len(text) + 1) if DROPPED.fullmatch(text, begin, at)]


def text_is_the_tokens(data: bytes) -> None:
    """The text and the number of used tokens do not depend on how tokens are cut into steps. They equal the
    definition: every prefix is decoded from scratch and searched for stop strings."""
    source = Source(data)
    tokens, stop = source.tokens(), source.stop()
    stream = TextStream(TOKENIZER, stop)
    pieces = [stream.push(part) for part in source.cut(tokens)]
    text = "".join(piece.text for piece in pieces) + stream.finish()
    got = text, sum(piece.tokens_used for piece in pieces), stream.stopped
    for count in range(1, len(tokens) + 1):
        so_far = whole_characters(tokens[:count])
        found = [(so_far.find(each), len(each), each) for each in stop if each in so_far]
        if found:
            at, _, first = min(found)
            assert got == (so_far[:at], count, first), (tokens, stop)
            return
    assert got == (TOKENIZER.decode(tokens), len(tokens), None), (tokens, stop)


def whole_characters(tokens: Sequence[int]) -> str:
    """The text of the tokens, without an incomplete character at its end."""
    data = b"".join(TOKENIZER.token_bytes()[token] for token in tokens)
    return codecs.getincrementaldecoder("utf-8")("replace").decode(data)


def bodies_are_taken_or_refused(data: bytes) -> None:
    """A body becomes requests for the engine or an error of the client (4xx), and nothing else."""
    source = Source(data)
    if source.below(2):
        path, body = malformed(source)
    else:
        path, body = source.pick(list(BODIES)), source.rest()
    status = asyncio.run(status_of(body, BODIES[path]))
    assert status == 200 or 400 <= status < 500, (path, body)


async def status_of(body: bytes, kind: type[Body]) -> int:
    try:
        await taken(body, kind)
    except ApiError as error:
        return error.status
    return 200


async def taken(body: bytes, kind: type[Body]) -> None:
    """Does everything that the server does with a body before it sends requests to the engine."""
    config = ServerConfig(tool_call_parser="deepseekv31", reasoning_parser="deepseek-v3")
    engine = EngineClient()
    engine.ready = Ready(4096, 4096, 2, {}, EngineStats())
    service = Service(config, engine, TOKENIZER)
    request = parse(body, kind)
    if isinstance(request, CompletionRequest):
        await service.completion(request)
    elif isinstance(request, ChatRequest):
        await service.chat(request)
    elif isinstance(request, GenerateRequest):
        await service.generate(request)
    elif isinstance(request, TokenizeRequest):
        await tokenize(service, request)
    elif isinstance(request, DetokenizeRequest):
        await detokenize(service, request)


PROPERTIES: dict[str, Callable[[bytes], None]] = {
    "parts": parts_are_the_text,
    "text": text_is_the_tokens,
    "streamed": streamed_is_whole,
    "bodies": bodies_are_taken_or_refused,
}
