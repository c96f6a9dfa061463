"""A text that is asked for: its prompt, the choice that it becomes, and its observers."""

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
    """A prompt and how its texts are made. `stop`: strings that end them; `stop_regexes` end them too.
    `echo`: the prompt's text, if answers begin with it. `name`: the client's name for it, or "". `shown`:
    special tokens that are text even with `skip_special_tokens`. `include_stop`: texts keep the stop string
    or token that ended them. `ends`: makes the search for one more end of a text. `remote`: the other server
    that works on it."""

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
    """One of the texts asked for."""

    index: int
    id: str  # what clients and the log call it; the engine's id of it is the request's
    request: NewRequest
    stream: TextStream
    tokens: list[int] = field(default_factory=list)  # the token that completed a stop string is the last
    text: list[str] = field(default_factory=list)
    # Per token, if asked for: the text that came out with it, the depth it was drafted at. A stream takes
    # them out as it sends them.
    depths: list[tuple[str, int]] | None = None
    steps: list[DraftStep] | None = None  # likewise, if asked for
    last_depth: int = 0  # of the last token in `depths`, sent or not
    echo: str | None = None  # the prompt's text, if the answer begins with it
    echoed: bool = False
    logprobs: LogprobStream | None = None
    prompt_entries: PromptEntries | None = None  # that its log-probabilities begin with
    entries: list[Entry] = field(default_factory=list)
    token_logprobs: list[TokenLogprob] = field(default_factory=list)  # of `tokens`, where asked for by token
    prompt_logprobs: list[TokenLogprob | None] = field(default_factory=list)
    # Of all tokens together, the one that ended it too, where log-probabilities were asked for
    logprob: float = 0.0
    sent: int = 0  # characters
    cached_tokens: int = 0
    finish_reason: str | None = None
    matched: str | int | None = None  # the stop string, the stop regex or the stop token's id that ended it
    last_spec: SpecStats | Raw = field(default_factory=SpecStats)  # as the engine sent it
    queued: float = 0.0  # seconds that it waited in the engine for its first step
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
    """More of a choice's text, with its log-probabilities: those of `prompt`, then `entries`. With the last
    delta the choice has its `finish_reason`."""

    choice: Choice
    text: str
    entries: list[Entry]
    prompt: PromptEntries | None = None


class Observer:
    """Called for each choice: `begun`, `first` and `more` as its tokens come, and at last `finished` or
    `given_up`. This one ignores it. `arrival` is the request's, by `perf_counter`."""

    def begun(self, choices: Sequence[Choice], n: int) -> None:
        """The choices of one HTTP request, `n` for each prompt, go to the engine."""

    def first(self, choice: Choice, arrival: float) -> None:
        """Its first output has come."""

    def more(self, tokens: int, seconds: float) -> None:
        """`tokens` more came, `seconds` after the output before."""

    def finished(self, choice: Choice, arrival: float) -> None:
        """It has its finish reason."""

    def given_up(self, choice: Choice, arrival: float, running: bool, error: ApiError | None) -> None:
        """running: the engine still worked on it, and was asked to stop. error: what the client gets; None:
        the client went away."""
