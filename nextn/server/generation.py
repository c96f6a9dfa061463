"""From prompts to text: the choices of one HTTP request while the engine works on them."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from nextn.request import Output, SamplingParams, SpecStats
from nextn.server.engine_client import EngineClient, News
from nextn.server.errors import ApiError
from nextn.server.messages import NewRequest
from nextn.server.metrics import Metrics
from nextn.tokenizer.stream import TextStream
from nextn.tokenizer.tokenizer import Tokenizer


@dataclass
class Choice:
    """One of the texts asked for."""

    index: int
    request: NewRequest
    stream: TextStream
    text: list[str] = field(default_factory=list)
    depths: list[tuple[str, int]] | None = None  # per token: its text, the depth it was drafted at
    completion_tokens: int = 0
    cached_tokens: int = 0
    finish_reason: str | None = None
    spec: SpecStats = field(default_factory=SpecStats)
    last_news: float = 0.0  # perf_counter

    @property
    def prompt_tokens(self) -> int:
        return len(self.request.tokens)


class Delta(NamedTuple):
    """More of a choice's text. After the last one its `finish_reason` is set."""

    choice: Choice
    text: str


class Generation:
    """`n` choices for each prompt. Choice i of a prompt draws from noise stream i of the prompt's seed, so
    it does not depend on n, nor on where in the list the prompt stands."""

    def __init__(
        self,
        engine: EngineClient,
        tokenizer: Tokenizer,
        prompts: Sequence[tuple[list[int], SamplingParams]],
        n: int,
        stop: Sequence[str],
        arrival: float,
        keep_depths: bool = False,
    ) -> None:
        self.engine = engine
        self.metrics: Metrics = engine.metrics
        self.n = n
        self.arrival = arrival  # perf_counter
        self.choices: list[Choice] = []
        base = uuid.uuid4().hex
        for tokens, params in prompts:
            for i in range(n):
                index = len(self.choices)
                request = NewRequest(f"{base}-{index}", tokens, params.replace(stream=i))
                choice = Choice(index, request, TextStream(tokenizer, stop), last_news=self.arrival)
                choice.depths = [] if keep_depths else None
                self.choices.append(choice)

    async def deltas(self) -> AsyncGenerator[Delta, None]:
        """Runs the choices; raises ApiError. However it is left, nothing stays behind in the engine."""
        running = {choice.request.rid: choice for choice in self.choices}
        queue: asyncio.Queue[News] = asyncio.Queue()
        self.metrics.requests += len(running)
        self.engine.submit([choice.request for choice in self.choices], queue)
        try:
            while running:
                rid, what = await queue.get()
                choice = running.get(rid)
                if isinstance(what, ApiError):
                    raise what
                if choice is None:
                    continue  # it ended at a stop string; this was under way
                text = self._take(choice, what)
                if choice.finish_reason is not None:
                    del running[rid]
                    self.engine.abort(rid)  # a stop string ends a request that the engine would go on with
                    self.metrics.e2e.observe(choice.last_news - self.arrival)
                yield Delta(choice, text)
        finally:
            for rid in running:
                self.metrics.aborted += self.engine.abort(rid)

    def _take(self, choice: Choice, out: Output) -> str:
        """Brings the choice up to date; returns the text to send."""
        self._observe(choice, len(out.tokens))
        choice.cached_tokens = out.cached_tokens
        choice.spec = out.spec or choice.spec
        if choice.depths is None:
            text, used, stopped = choice.stream.push(out.tokens)
            choice.completion_tokens += used
        else:
            text, stopped = self._push_one_by_one(choice, choice.depths, out)
        if stopped is not None:
            choice.finish_reason = "stop"
        elif out.finish_reason is not None:
            choice.finish_reason = out.finish_reason
            rest = choice.stream.finish()
            text += rest
            if choice.depths and rest:
                last, depth = choice.depths[-1]
                choice.depths[-1] = last + rest, depth
        return text

    def _push_one_by_one(
        self, choice: Choice, depths: list[tuple[str, int]], out: Output
    ) -> tuple[str, str | None]:
        texts: list[str] = []
        for token, depth in zip(out.tokens, out.drafted, strict=True):
            text, used, stopped = choice.stream.push([token])
            choice.completion_tokens += used
            texts.append(text)
            depths.append((text, depth))
            if stopped is not None:
                return "".join(texts), stopped
        return "".join(texts), None

    def _observe(self, choice: Choice, tokens: int) -> None:
        now = time.perf_counter()
        if choice.last_news == self.arrival:
            self.metrics.ttft.observe(now - self.arrival)
        else:
            for _ in range(tokens):
                self.metrics.itl.observe((now - choice.last_news) / tokens)
        choice.last_news = now
