"""Turns parsed request bodies into generations: encodes prompts, checks limits, admits requests."""

from __future__ import annotations

import asyncio
import secrets
import time
import uuid
from collections.abc import Iterable, Sequence

from nextn.request import SamplingParams
from nextn.server.answers.choice import Observer, Prompt
from nextn.server.answers.generation import Generation
from nextn.server.parsers.answer import AnswerFormat
from nextn.server.parsers.first_call import FirstCall
from nextn.server.process.engines import Engines
from nextn.server.process.messages import Ready
from nextn.server.prompts.bound import Bound, check_vocabulary, token_limit
from nextn.server.prompts.chat import ChatPrompt, chat_prompt, is_small
from nextn.server.prompts.encoding import Encoder
from nextn.server.prompts.fill_in import with_suffix
from nextn.server.prompts.stop_regexes import compiled_regexes
from nextn.server.protocol.body import shortened
from nextn.server.protocol.errors import (
    SHUTTING_DOWN,
    ApiError,
    bad_request,
    no_engine,
    too_many_tokens,
    unavailable,
)
from nextn.server.protocol.native import GenerateRequest, PromptParams
from nextn.server.protocol.openai import ChatRequest, CommonRequest, CompletionRequest, Sampling
from nextn.server_config import ServerConfig
from nextn.tokenizer.stop_regex import StopRegexes
from nextn.tokenizer.tokenizer import Tokenizer
from nextn.trace import TRACE

MOST_TOGETHER = 2**21  # tokens of all prompts of one request
COMPLETION_MAX_TOKENS = 16  # OpenAI's default
GENERATE_MAX_TOKENS = 128  # SGLang's
MOST_CONSTRAINTS = 2**25  # characters of a request's constraints; each counts once per choice


class Service:
    """The server's state behind its routes, and the entry points `completion`, `chat` and `generate`.

    draining: the server is shutting down and refuses new requests."""

    def __init__(
        self,
        config: ServerConfig,
        engine: Engines,
        tokenizer: Tokenizer,
        observer: Observer | None = None,
    ) -> None:
        self.config, self.engine, self.tokenizer, self.observer = config, engine, tokenizer, observer
        self.encoder = Encoder(tokenizer)
        self.draining = False
        self.engine_id = uuid.uuid4().hex  # identifies this server to vLLM's gateways
        # Address at which decode servers reach a prefill server's bootstrap port
        self.bootstrap = (config.host, config.disaggregation_bootstrap_port)
        self.changing = asyncio.Lock()  # held while the engine's defaults are read, changed and sent
        self.created = int(time.time())

    @property
    def status(self) -> str:
        if self.draining:
            return "shutting down"
        return "ok" if self.engine.ready is not None else "the engine is not running"

    @property
    def health(self) -> dict[str, object]:
        """The status, and with several replicas the ranks that are down."""
        down = [rank for rank, client in enumerate(self.engine.ranks) if client.ready is None]
        some = {"dp_ranks_down": down} if down and len(self.engine.ranks) > 1 else {}
        return {"status": self.status, **some}

    def check_open(self) -> Ready:
        """Raises ApiError (503) if the server is shutting down or no engine is running."""
        if self.draining:
            raise unavailable("the server is shutting down", SHUTTING_DOWN)
        if self.engine.ready is None:
            raise no_engine()
        return self.engine.ready

    def open(self, model: str | None) -> Ready:
        """Like `check_open`; also raises ApiError (404) if the server has another model."""
        ready = self.check_open()
        self.check_model(model)
        return ready

    def check_model(self, model: str | None) -> None:
        if model is not None and model != self.config.model_name:
            asked, ours = shortened(model, 200), self.config.model_name
            message = f"the model {asked} does not exist; this server has {ours!r}"
            raise ApiError(404, message, param="model", code="model_not_found")

    def bound(self) -> Bound | None:
        """The limits that prompts are checked against, or None if no engine is running."""
        ready = self.engine.ready
        return None if ready is None else Bound(ready.context_length, ready.vocab_size, self.tokenizer.length)

    async def completion(self, request: CompletionRequest) -> Generation:
        arrival = time.perf_counter()
        self.open(request.model)
        given = request.prompts()
        self._check_count(len(given) * request.candidates)  # first: a body has room for millions of prompts
        regexes = await compiled_regexes(request.stop_regex)
        if request.suffix:
            ids = await self._encode(with_suffix(given, request.suffix, self.tokenizer))
        else:
            ids = await self._ids(given)
        echo = given if request.echo else None
        made = self._prompts(request, ids, COMPLETION_MAX_TOKENS, regexes, echo)
        return self._generation(request, made, arrival, "cmpl")

    async def generate(self, request: GenerateRequest) -> tuple[Generation, list[PromptParams]]:
        arrival = time.perf_counter()
        self.check_open()
        given = request.prompts()
        self._check_count(len(given))
        asked = request.prompt_params(len(given))
        n = asked[0].sampling.n
        self._check_count(len(asked) * n)
        regexes = {each: await compiled_regexes(each, "sampling_params.") for each in patterns(asked)}
        ids = await self._ids(given)
        ready = self.check_open()  # again: tokenizing may have taken a while
        prompts = []
        if request.prefill_only:
            asked, n = [each.prompt_only() for each in asked], 1
        remotes = request.remotes(len(ids))
        for tokens, each, remote in zip(ids, asked, remotes, strict=True):
            limit = token_limit(
                tokens,
                each.sampling.max_new_tokens,
                GENERATE_MAX_TOKENS,
                ready.context_length,
                "sampling_params.max_new_tokens",
            )
            check_vocabulary(tokens, ready.vocab_size)
            seed = seed_or_random(each.sampling.sampling_seed)
            limit = 0 if request.prefill_only else limit
            params = each.params(len(tokens), limit, seed, request.speculative, ready.vocab_size)
            if params.prompt_logprobs is not None:  # see HandedOff.scores_prompts
                remote = None
                params = params.replace(prompt_logprobs=None) if request.prefill_only else params
            stop_regexes = regexes[tuple(each.sampling.stop_regex)]
            prompt = prompt_of(each.sampling, tokens, params, stop_regexes, name=each.rid)
            prompts.append(prompt._replace(remote=remote))
        check_constraints(prompts, n)
        self._admit(len(prompts) * n)
        priority = self._priority(request.priority)
        generation = Generation(
            self.engine,
            self.tokenizer,
            prompts,
            n,
            arrival,
            logprobs_by_token=True,
            priority=priority,
            rank=request.rank(self.config.dp_size),
            observer=self.observer,
        )
        if any(prompt.remote for prompt in prompts):
            generation.transfer_params = request.answer_params(self.engine_id, *self.bootstrap)
        return generation, asked

    async def chat(self, request: ChatRequest) -> tuple[Generation, AnswerFormat]:
        arrival = time.perf_counter()
        ready = self.open(request.model)
        text, answer_format, constraint = await self.chat_prompt(request, ready)
        ids = await self.encoder.encode([text], add_special_tokens=False, most=ready.context_length)
        regexes = await compiled_regexes(request.stop_regex)
        (prompt,) = self._prompts(request, ids, None, regexes)
        if answer_format.tool_parser is not None and not request.parallel_tool_calls:
            prompt = prompt._replace(ends=lambda: FirstCall(answer_format))
        if constraint is not None and not request.prefill_only:
            prompt = prompt._replace(params=prompt.params.replace(constraint=constraint))
        generation = self._generation(
            request, [prompt._replace(shown=answer_format.markers)], arrival, "chatcmpl"
        )
        return generation, answer_format

    async def chat_prompt(self, request: ChatRequest, ready: Ready) -> ChatPrompt:
        """Renders a chat, in a thread if that may take long. Raises ApiError."""
        if is_small(request):
            render = TRACE.around("server", "render chat", chat_prompt)
            return render(request, self.tokenizer, self.config)
        await self.encoder.check_length(request.contents(), ready.context_length)
        return await self.encoder.run(chat_prompt, request, self.tokenizer, self.config)

    async def _ids(self, given: Sequence[str | list[int]]) -> list[list[int]]:
        """The token ids of prompts. `given` is either all texts or all token ids. Raises ApiError."""
        ids = [prompt for prompt in given if isinstance(prompt, list)]
        if not ids:
            return await self._encode(prompt for prompt in given if isinstance(prompt, str))
        count, most = sum(map(len, ids)), self._most_together()
        if count > most:
            raise too_many_tokens(most)
        return ids

    async def _encode(self, prompts: Iterable[str]) -> list[list[int]]:
        context = self.check_open().context_length
        return await self.encoder.encode(prompts, most=context, most_together=self._most_together())

    def _most_together(self) -> int:
        return max(MOST_TOGETHER, self.check_open().context_length)

    def _prompts(
        self,
        request: CommonRequest,
        prompts: Sequence[list[int]],
        default: int | None,
        regexes: StopRegexes | None,
        echo: Sequence[str | list[int]] | None = None,
    ) -> list[Prompt]:
        """Checks prompts and parameters. Raises ApiError. default: max_tokens if the request sets none; None
        means all tokens that the context has room for. echo: the prompts as they were sent, if the answers
        begin with them."""
        ready = self.open(request.model)  # again: tokenizing may have taken a while
        made = []
        for i, (tokens, remote) in enumerate(zip(prompts, request.remotes(len(prompts)), strict=True)):
            limit = token_limit(tokens, request.limit, default, ready.context_length, request.limit_field)
            limit = 0 if request.prefill_only else limit
            check_vocabulary(tokens, ready.vocab_size)
            params = request.sampling(limit, seed_or_random(request.seed), ready.vocab_size)
            begin = None if echo is None else self._text(echo[i], request.skip_special_tokens)
            made.append(prompt_of(request, tokens, params, regexes, begin)._replace(remote=remote))
        return made

    def _generation(
        self, request: CommonRequest, prompts: Sequence[Prompt], arrival: float, kind: str
    ) -> Generation:
        """Admits the request. Raises ApiError. kind: prefix of the answer's id, if the client gave no id."""
        check_constraints(prompts, request.candidates)
        self._admit(len(prompts) * request.candidates)
        generation = Generation(
            self.engine,
            self.tokenizer,
            prompts,
            request.candidates,
            arrival,
            keep_depths=isinstance(request, CompletionRequest) and request.return_draft_depths,
            keep_steps=request.returns_draft_steps,
            logprobs_by_token=request.tops is None,
            name=request.rid or f"{kind}-{uuid.uuid4().hex}",
            priority=self._priority(request.priority),
            rank=request.rank(self.config.dp_size),
            observer=self.observer,
        )
        if any(prompt.remote for prompt in prompts):
            generation.transfer_params = request.answer_params(self.engine_id, *self.bootstrap)
        return generation

    def _priority(self, asked: int) -> int:
        """The priority for the engine, where larger values run first. Raises ApiError (400) if the request
        sets one and the server has no priority scheduling."""
        if self.config.schedule_low_priority_values_first:
            return -asked
        if asked and not self.config.enable_priority_scheduling:
            raise bad_request(
                f"priority is {asked}; this server has no priorities: it was started without "
                "--enable-priority-scheduling",
                "priority",
            )
        return asked

    def _text(self, prompt: str | list[int], skip_special_tokens: bool) -> str:
        return prompt if isinstance(prompt, str) else self.tokenizer.decode(prompt, skip_special_tokens)

    def _admit(self, choices: int) -> None:
        """Raises ApiError (503) if the queue has no room for all of the request's choices."""
        most, waiting = self._check_count(choices), self.engine.waiting
        if self.engine.active + choices > most or waiting >= self.config.max_queued_requests:
            raise unavailable(f"the queue is full ({waiting} requests wait); try again later", "queue_full")

    def _check_count(self, choices: int) -> int:
        """Returns the server's capacity in choices. Raises ApiError (400) if the request has more."""
        most = self.config.capacity
        if choices > most:
            each = "--dp-size * " * (self.config.dp_size > 1)
            raise bad_request(
                f"the request asks for {choices} choices; {each}--max-running-requests + "
                f"--max-queued-requests is {most}"
            )
        return most


def patterns(asked: Sequence[PromptParams]) -> set[tuple[str, ...]]:
    return {tuple(each.sampling.stop_regex) for each in asked}


def check_constraints(prompts: Sequence[Prompt], n: int) -> None:
    """Checks the grammars of prompts, including those made from tools. Raises ApiError (400)."""
    given = [prompt.params.constraint for prompt in prompts if prompt.params.constraint is not None]
    try:
        for constraint in given:
            constraint.check()
    except ValueError as e:
        raise bad_request(str(e)) from e
    length = n * sum(len(constraint.text) for constraint in given)
    if length > MOST_CONSTRAINTS:
        raise bad_request(
            f"the constraints have {length} characters, counted for each of the choices; "
            f"{MOST_CONSTRAINTS} are allowed"
        )


def prompt_of(
    asked: Sampling,
    tokens: list[int],
    params: SamplingParams,
    regexes: StopRegexes | None,
    echo: str | None = None,
    name: str = "",
) -> Prompt:
    return Prompt(
        tokens,
        params,
        asked.stop,
        echo,
        name,
        skip_special_tokens=asked.skip_special_tokens,
        include_stop=asked.keeps_stop,
        stop_regexes=regexes,
    )


def seed_or_random(seed: int | None) -> int:
    return secrets.randbits(64) if seed is None else seed
