"""Runs the choices of one HTTP request, from prompts to text."""

from __future__ import annotations

import asyncio
import dataclasses
import time
import uuid
from collections.abc import AsyncGenerator, Sequence

from nextn.disaggregation.remote import Remote
from nextn.request import GRAMMAR_ERROR, PREFILL_FAILED, REQUEST_FAILED, Output, StepDraft, TokenLogprob
from nextn.server.answers.choice import Choice, Delta, Observer, Prompt
from nextn.server.answers.logprobs import Entry, LogprobStream, PromptEntries
from nextn.server.process.engines import Engines
from nextn.server.process.inbox import Inbox, Update
from nextn.server.process.messages import NewRequest, PromptScores, Tokens
from nextn.server.protocol.context import client
from nextn.server.protocol.errors import ApiError, bad_request, ended_by_request, overdue
from nextn.server.protocol.responses import DraftStep
from nextn.tokenizer.stop_regex import StopRegexError
from nextn.tokenizer.stream import TextStream
from nextn.tokenizer.tokenizer import Tokenizer
from nextn.trace import TRACE

LONG_PROMPT = 256  # tokens; from this length on, a prompt's scores are read in a thread

STATUS = {GRAMMAR_ERROR: 400, PREFILL_FAILED: 502}  # HTTP status by error code; all other errors: 500
Out = Output | Tokens


class Generation:
    """`n` choices for each prompt. Choice i of a prompt draws from noise stream i of the prompt's seed, so
    its text depends neither on n nor on the prompt's position in the list."""

    def __init__(
        self,
        engine: Engines,
        tokenizer: Tokenizer,
        prompts: Sequence[Prompt],
        n: int,
        arrival: float,
        keep_depths: bool = False,
        keep_steps: bool = False,
        logprobs_by_token: bool = False,
        name: str = "",
        priority: int = 0,
        rank: int | None = None,
        observer: Observer | None = None,
    ) -> None:
        """logprobs_by_token: log-probabilities are kept in the choices instead of in the deltas. name: the
        answer's id; priority: larger values run first; rank: the replica; None means any."""
        self.engine, self.tokenizer, self.rank = engine, tokenizer, rank
        self.observer = observer or Observer()
        self.n = n
        self.arrival = arrival  # perf_counter
        self.choices: list[Choice] = []
        # On a prefill server: parameters that the gateway passes on to a decode server (vLLM's protocol)
        self.transfer_params: dict[str, object] | None = None
        # Prompts with equal keys share their computation and their scores. The key has all that these use.
        groups: dict[tuple[tuple[int, ...], int | None, str | None, Remote | None], int] = {}
        unique = uuid.uuid4().hex
        self.id = name or unique
        for prompt in prompts:
            key = (tuple(prompt.tokens), prompt.params.prompt_logprobs, prompt.echo, prompt.remote)
            group = groups.setdefault(key, len(groups))
            for i in range(n):
                index = len(self.choices)
                called = f"{self.id}-{index}"
                if prompt.name:
                    called = f"{prompt.name}_{i}" if n > 1 else prompt.name
                params = prompt.params.replace(stream=i)
                request = NewRequest(
                    f"{unique}-{index}", prompt.tokens, params, priority, group, client.get(), prompt.remote
                )
                stream = TextStream(
                    tokenizer,
                    prompt.stop,
                    prompt.skip_special_tokens,
                    prompt.include_stop,
                    prompt.shown,
                    prompt.stop_regexes,
                    None if prompt.ends is None else prompt.ends(),
                )
                choice = Choice(index, called, request, stream, last_output=self.arrival)
                choice.depths = [] if keep_depths else None
                choice.steps = [] if keep_steps else None
                choice.echo = prompt.echo
                if prompt.params.logprobs is not None and not logprobs_by_token:
                    choice.logprobs = LogprobStream(stream.token_bytes)
                self.choices.append(choice)

    async def deltas(self) -> AsyncGenerator[Delta, None]:
        """Runs the choices and yields their text. Raises ApiError. When the generator ends, is closed or
        raises, the engine drops all requests that still run."""
        running = {choice.request.rid: choice for choice in self.choices}
        inbox = Inbox()
        error: ApiError | None = None
        timer = self._deadline(inbox)
        self.observer.begun(self.choices, self.n)
        requests, names = [c.request for c in self.choices], [c.id for c in self.choices]
        self.engine.submit(requests, inbox, names, self.rank)
        try:
            while running:
                outputs, failed = await self._sorted(await inbox.take())
                for rid, outs in outputs.items():
                    choice = running.get(rid)
                    if choice is None:
                        continue  # output of a step that began before the choice ended at a stop string
                    first = choice.last_output == self.arrival
                    lap = TRACE.laps("server")
                    text, entries = self._take_all(choice, outs, first)
                    lap("detokenize", tokens=sum(len(out.tokens) for out in outs))
                    if choice.finish_reason is not None:
                        del running[rid]
                        self.engine.abort(rid)  # the engine does not know that a stop string was found
                        if choice.finish_reason == "abort":
                            self.observer.ended_early(choice, self.arrival, True, ended_by_request())
                        else:
                            self.observer.finished(choice, self.arrival)
                    yield Delta(choice, text, entries, choice.prompt_entries if first else None)
                if failed is not None and running:
                    raise failed
        except ApiError as e:
            error = e
            raise
        finally:
            if timer is not None:
                timer.cancel()
            for rid, choice in running.items():
                self.observer.ended_early(choice, self.arrival, self.engine.abort(rid), error)

    async def _sorted(self, updates: list[Update]) -> tuple[dict[str, list[Out]], ApiError | None]:
        """Groups outputs by request, up to the first error, which it returns. Prompt scores are stored in
        their choices."""
        if len(updates) == 1 and isinstance(what := updates[0].what, Tokens):
            return {what.rid: [what]}, None
        outputs: dict[str, list[Out]] = {}
        for rid, what in updates:
            if isinstance(what, ApiError):
                return outputs, what
            if isinstance(what, PromptScores):
                await self._take_scores(what)
            elif isinstance(what, Output) and what.error is not None:
                code = what.error_code or REQUEST_FAILED
                return outputs, ApiError(STATUS.get(code, 500), what.error, code, code=code)
            else:
                outputs.setdefault(rid, []).append(what)
        return outputs, None

    def _deadline(self, inbox: Inbox) -> asyncio.TimerHandle | None:
        """Starts the timer that puts an error into the inbox at the request's time limit. Returns None if
        there is no limit."""
        seconds = self.engine.request_timeout
        if seconds is None:
            return None
        left = self.arrival + seconds - time.perf_counter()
        update = Update("", overdue(seconds))
        return asyncio.get_running_loop().call_later(max(0.0, left), inbox.put_nowait, update)

    def _take_all(self, choice: Choice, outs: Sequence[Out], first: bool) -> tuple[str, list[Entry]]:
        """Adds the outputs of one or more steps to the choice. Returns the text and entries to send. Raises
        ApiError (400) if a stop regex fails."""
        self._take_time(choice, outs, first)
        if len(outs) > 1 and choice.steps is None and not choice.stream.searches:
            outs = merged(outs)
        text, entries = "", list[Entry]()
        try:
            for out in outs:
                before = choice.completion_tokens
                text += self._take(choice, out)
                entries += self._take_logprobs(choice, out, choice.completion_tokens - before)
                if choice.finish_reason is not None:
                    break
        except StopRegexError as e:
            raise bad_request(f"stop_regex: {e}", "stop_regex") from e
        return text, entries

    def _take(self, choice: Choice, out: Out) -> str:
        """Adds one output to the choice. Returns the text to send."""
        choice.last_spec = out.spec or choice.last_spec
        before = choice.completion_tokens
        if choice.depths is None:
            text, used, stopped = choice.stream.push(out.tokens)
            choice.tokens += out.tokens[:used]
        else:
            text, stopped = self._push_one_by_one(choice, choice.depths, out)
        if choice.steps is not None and out.step is not None:
            choice.steps.append(self._draft_step(out.step, choice.completion_tokens - before))
        if stopped is not None:
            choice.finish_reason, choice.matched = "stop", stopped
        elif out.finish_reason is not None:
            choice.finish_reason, choice.matched = out.finish_reason, out.matched
            rest = choice.stream.finish(out.matched)
            text += rest
            if choice.depths is not None and rest:
                last, depth = choice.depths.pop() if choice.depths else ("", choice.last_depth)
                choice.depths.append((last + rest, depth))
        if choice.echo is not None and not choice.echoed:
            text, choice.echoed = choice.echo + text, True
        choice.sent += len(text)
        return text

    def _draft_step(self, step: StepDraft, tokens: int) -> DraftStep:
        drafts = [self.tokenizer.token_names[token] for token in step.tokens]
        made = DraftStep(round(step.seconds, 6), tokens, drafts, list(step.accepted))
        if step.parents is not None:
            made.parents = list(step.parents)
        return made

    def _take_time(self, choice: Choice, outs: Sequence[Out], first: bool) -> None:
        """Reports the outputs' times to the observer. Tokens that arrive together share the time since the
        previous output equally. Outputs that arrive together with the first one count 0 seconds."""
        if outs[-1].finish_reason == "abort":
            outs = outs[:-1]
        if not outs:
            return
        now = time.perf_counter()
        since, choice.last_output = now - choice.last_output, now
        choice.cached_tokens = outs[-1].cached_tokens
        if first:
            choice.first_output, choice.queued = now, outs[0].queued
            self.observer.first(choice, self.arrival)
            outs, since = outs[1:], 0.0
        if outs:
            self.observer.more(sum(len(out.tokens) for out in outs), since)

    async def _take_scores(self, scores: PromptScores) -> None:
        rids = set(scores.rids)
        alike = [c for c in self.choices if c.request.rid in rids and c.finish_reason is None]
        if not alike:
            return
        # Reading a long prompt's scores takes long. In a thread, it does not hold up other requests.
        if len(scores.own) < LONG_PROMPT:
            logprobs, entries = self._read(scores, alike[0])
        else:
            logprobs, entries = await asyncio.to_thread(self._read, scores, alike[0])
        for choice in alike:
            choice.prompt_logprobs, choice.prompt_entries = logprobs, entries
            if entries is not None and choice.logprobs is not None:
                choice.logprobs.begin(entries)

    def _read(
        self, scores: PromptScores, choice: Choice
    ) -> tuple[list[TokenLogprob | None], PromptEntries | None]:
        logprobs = scores.unpack()
        if choice.echo is None or choice.logprobs is None:
            return logprobs, None
        return logprobs, PromptEntries(self.tokenizer, choice.echo, choice.request.tokens, logprobs)

    def _take_logprobs(self, choice: Choice, out: Out, used: int) -> list[Entry]:
        """Adds an output's log-probabilities to the choice. Returns the entries to send. used: number of the
        output's tokens that belong to the answer."""
        stream = choice.logprobs
        if stream is None and out.logprobs is None and out.matched_logprob is None:
            return []
        choice.logprob += sum(each.logprob for each in (out.logprobs or [])[:used])
        if out.matched_logprob is not None and choice.stream.stopped is None:
            choice.logprob += out.matched_logprob.logprob
        if stream is None:
            choice.token_logprobs += (out.logprobs or [])[:used]
            return []
        stream.push(out.tokens[:used], (out.logprobs or [])[:used])
        entries = stream.take(choice.sent)
        if choice.finish_reason is None or choice.stream.stopped is not None:
            return entries
        # Scoring clients expect max_tokens entries after the prompt's. A stop token is one of them.
        kept = choice.echo is not None or choice.stream.kept_of(out.matched)
        if kept and out.matched is not None and out.matched_logprob is not None:
            stream.push([out.matched], [out.matched_logprob])
        return entries + stream.rest()

    def _push_one_by_one(
        self, choice: Choice, depths: list[tuple[str, int]], out: Out
    ) -> tuple[str, str | None]:
        texts: list[str] = []
        for token, depth in zip(out.tokens, out.drafted, strict=True):
            text, used, stopped = choice.stream.push([token])
            choice.tokens += [token][:used]
            texts.append(text)
            depths.append((text, depth))
            choice.last_depth = depth
            if stopped is not None:
                return "".join(texts), stopped
        return "".join(texts), None


def merged(outs: Sequence[Out]) -> list[Out]:
    """Merges outputs of one request into one with the same effect on text and statistics. Outputs that end in
    an abort stay separate."""
    last = outs[-1]
    if last.finish_reason == "abort":
        return [*outs]
    tokens, drafted = list[int](), list[int]()
    for out in outs:
        tokens += out.tokens
        drafted += out.drafted
    if isinstance(last, Tokens):
        return [Tokens(last.rid, tokens, drafted, last.cached_tokens, last.queued, last.spec)]
    logprobs = [each for out in outs for each in out.logprobs or []] or last.logprobs
    return [dataclasses.replace(last, tokens=tokens, drafted=drafted, logprobs=logprobs)]
