"""What must hold of all that reads an answer's tokens or a request's body, for any bytes at all.

Each property takes bytes and raises AssertionError, or what must not be raised: a fuzzer grows the bytes by
what they reach in the code (parsers.py), the tests draw them at random.
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
from nextn.server.parsers.answer import AnswerParser, Reading
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
# All that a reader may leave out of an answer: what marks a call or reasoning, and blanks around it.
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


def parsed(pieces: Sequence[str], reading: Reading) -> list[Part]:
    """A chat's answer in parts."""
    parser = AnswerParser(reading)
    parts = [part for piece in pieces for part in parser.push(piece)] + parser.finish()
    calls = 0
    for part in parts:
        assert part.text, part
        calls += part.kind == "call"
        assert part.call == max(0, calls - 1) or part.kind in ("reasoning", "content"), part
    return parts


def merged(parts: Sequence[Part]) -> list[Part]:
    """Neighbours of one kind made one."""
    whole: list[Part] = []
    for part in parts:
        if whole and part.kind != "call" and (whole[-1].kind, whole[-1].call) == (part.kind, part.call):
            whole[-1] = part._replace(text=whole[-1].text + part.text)
        else:
            whole.append(part)
    return whole


def parts_are_the_text(data: bytes) -> None:
    """However an answer is cut, its parts are the same; all of its text is in them, in order, but marks.
    Where the arguments of a call are pairs, the parser writes their JSON, and only the first is asked for."""
    source = Source(data)
    reading, text = source.reading(), source.text()
    parts = parsed([text], reading)
    assert merged(parsed(source.cut(text), reading)) == merged(parts)
    pairs = reading.tool_parser is not None and FORMATS[reading.tool_parser].spelling.pair is not None
    if pairs and any(part.kind == "arguments" for part in parts):
        return
    ends = {0}  # where in the text the parts so far may end
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
    """However tokens are cut into steps, the text and the number of tokens used are the definition's: every
    beginning decoded from scratch, and looked through for stop strings."""
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
    """Without the beginning of one at the end."""
    data = b"".join(TOKENIZER.token_bytes()[token] for token in tokens)
    return codecs.getincrementaldecoder("utf-8")("replace").decode(data)


def bodies_are_taken_or_refused(data: bytes) -> None:
    """A body becomes requests for the engine, or the client's mistake; never anything else."""
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
    """All that is done with it before the engine hears of it."""
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
