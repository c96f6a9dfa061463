"""The data of one requested text: `Prompt` (the input), `Choice` (the state of the answer), `Delta` (a piece
of the answer), and `Observer` (metrics, log and traces)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec import Raw

from nextn.disaggregation.remote import Remote
from nextn.request import SamplingParams, TokenLogprob
from nextn.server.answers.logprobs import Entry, LogprobStream, PromptEntries
from nextn.server.process.messages import NewRequest, decode_spec
from nextn.server.protocol.errors import ApiError
from nextn.server.protocol.responses import DraftStep
from nextn.stats import SpecStats
from nextn.tokenizer.stop_regex import StopRegexes
from nextn.tokenizer.stream import Search, TextStream


class Prompt(NamedTuple):
    """A prompt, and how its answers are generated.

    stop, stop_regexes: strings and patterns that end an answer. echo: the prompt's text, if answers begin
    with it. name: the client's id for the prompt, or "". shown: special tokens that remain in the text even
    with `skip_special_tokens`. include_stop: answers keep the stop string or token that ended them. ends:
    returns a new search for one more end of an answer. remote: the other server that works on this prompt."""

    tokens: list[int]
    params: SamplingParams
    stop: Sequence[str] = ()
    echo: str | None = None
    name: str = ""
    shown: frozenset[str] = frozenset()
    skip_special_tokens: bool = True
    include_stop: bool = False
    stop_regexes: StopRegexes | None = None
    ends: Callable[[], Search] | None = None
    remote: Remote | None = None


@dataclass
class Choice:
    """One requested text, and its state while it is generated."""

    index: int
    id: str  # for clients and the log; the engine's id is `request.rid`
    request: NewRequest
    stream: TextStream
    tokens: list[int] = field(default_factory=list)  # ends with the token that completed a stop string
    text: list[str] = field(default_factory=list)
    # Per token, if requested: the text that came out with the token, and the depth at which it was drafted.
    # A stream removes the entries that it sends.
    depths: list[tuple[str, int]] | None = None
    steps: list[DraftStep] | None = None  # if requested; a stream removes the entries that it sends
    last_depth: int = 0  # depth of the last token, whether `depths` still contains it or not
    echo: str | None = None  # the prompt's text, if the answer begins with it
    echoed: bool = False
    logprobs: LogprobStream | None = None
    prompt_entries: PromptEntries | None = None  # the answer's log-probabilities begin with these
    entries: list[Entry] = field(default_factory=list)
    token_logprobs: list[TokenLogprob] = field(default_factory=list)  # of `tokens`, with `logprobs_by_token`
    prompt_logprobs: list[TokenLogprob | None] = field(default_factory=list)
    # Sum over all tokens, including a token that ended the choice, if log-probabilities were requested
    logprob: float = 0.0
    sent: int = 0  # characters
    cached_tokens: int = 0
    finish_reason: str | None = None
    matched: str | int | None = None  # what ended the choice: a stop string, a stop regex or a token id
    last_spec: SpecStats | Raw = field(default_factory=SpecStats)  # encoded until `spec` is read
    queued: float = 0.0  # seconds in the engine's queue before the first step
    first_output: float = 0.0  # perf_counter
    last_output: float = 0.0

    @property
    def spec(self) -> SpecStats:
        if isinstance(self.last_spec, Raw):
            self.last_spec = decode_spec(self.last_spec)
        return self.last_spec

    @property
    def prompt_tokens(self) -> int:
        return len(self.request.tokens)

    @property
    def completion_tokens(self) -> int:
        return len(self.tokens)


class Delta(NamedTuple):
    """The next piece of a choice's text, with its log-probabilities: first `prompt`, then `entries`. When the
    last delta is yielded, `choice.finish_reason` is set."""

    choice: Choice
    text: str
    entries: list[Entry]
    prompt: PromptEntries | None = None


class Observer:
    """Receives the events of each choice: `begun`, `first`, `more` for later tokens, and at the end
    `finished` or `ended_early`. This base class does nothing. arrival: the request's, by `perf_counter`."""

    def begun(self, choices: Sequence[Choice], n: int) -> None:
        """The choices of one HTTP request, `n` for each prompt, are about to be submitted to the engine."""

    def first(self, choice: Choice, arrival: float) -> None:
        """The choice's first output has arrived."""

    def more(self, tokens: int, seconds: float) -> None:
        """`tokens` more tokens of a choice arrived, `seconds` after its previous output."""

    def finished(self, choice: Choice, arrival: float) -> None:
        """The choice has its finish reason."""

    def ended_early(self, choice: Choice, arrival: float, running: bool, error: ApiError | None) -> None:
        """The choice ended without a complete answer. running: the engine was still working on it and has
        been told to stop. error: the client gets this; None if the client disconnected."""
