"""Messages between the HTTP process and the engine process: msgspec structs in MessagePack.

`Request` objects stay in the engine process. The HTTP process knows a request by its `rid`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal, TypeAlias, cast

import msgspec

from nextn.disaggregation.remote import Remote
from nextn.expert_load import ExpertRecord
from nextn.request import Output, SamplingParams, SpeculativeParams, TokenLogprob
from nextn.stats import EngineStats, SpecStats
from nextn.trace import ProcessTrace


class NewRequest(msgspec.Struct, array_like=True):
    rid: str
    tokens: list[int]
    params: SamplingParams
    priority: int = 0  # larger values run first
    # Requests of one `Add` with the same number have the same prompt, and need the same scores of it.
    group: int | None = None
    client: str = ""  # "host port" of the connection; clients take turns at the compiler of grammars
    remote: Remote | None = None  # source of its prompt's pages, or the name under which others fetch them


class Add(msgspec.Struct, tag=True, array_like=True):
    """All choices of one HTTP request. If one is refused, this is reported before the others begin. `add_of`
    makes it, and `requests_of` reads it."""

    requests: list[NewRequest]
    same_tokens: list[bool]  # per request: it has the previous request's prompt; `tokens` is empty here
    same_constraint: list[bool]  # per request: it has the previous request's constraint; it is None here


def add_of(requests: Sequence[NewRequest]) -> Add:
    """Makes an `Add`. Data that a request shares with the previous one is sent once, because a long prompt
    may have 128 choices."""
    short, same_tokens, same_constraint = [], [], []
    last: NewRequest | None = None
    for new in requests:
        params = new.params
        same_tokens.append(last is not None and new.tokens is last.tokens)
        same_constraint.append(
            last is not None and params.constraint is not None and params.constraint is last.params.constraint
        )
        if same_constraint[-1]:
            params = params.replace(constraint=None)
        tokens = [] if same_tokens[-1] else new.tokens
        short.append(NewRequest(new.rid, tokens, params, new.priority, new.group, new.client, new.remote))
        last = new
    return Add(short, same_tokens, same_constraint)


def requests_of(add: Add) -> list[NewRequest]:
    """The requests that were passed to `add_of`. Each has its own list of tokens."""
    requests: list[NewRequest] = []
    for new, tokens, constraint in zip(add.requests, add.same_tokens, add.same_constraint, strict=True):
        if tokens:
            new.tokens = list(requests[-1].tokens)
        if constraint:
            new.params = new.params.replace(constraint=requests[-1].params.constraint)
        requests.append(new)
    return requests


class Abort(msgspec.Struct, tag=True, array_like=True):
    """Ends a request. The engine frees its pages before the next step, and sends nothing more about it."""

    rid: str


class SetSpeculativeDefaults(msgspec.Struct, tag=True, array_like=True):
    """Sets the defaults of later requests; `Done` follows."""

    call: int
    defaults: SpeculativeParams


class FlushCache(msgspec.Struct, tag=True, array_like=True):
    """Empties the prefix cache, unless requests are in the engine; `Done` follows."""

    call: int


RecordAction: TypeAlias = Literal["start", "stop", "dump"]


class RecordExperts(msgspec.Struct, tag=True, array_like=True):
    """Controls the record of experts' rows: `Done` follows, or `Recorded` after "dump"."""

    call: int
    action: RecordAction


class StartProfile(msgspec.Struct, tag=True, array_like=True):
    """Records a profile of the engine; `Profiled` follows, after `steps` steps or on `StopProfile`. first:
    the number of the first step to record, counted from the engine's start; if it has passed, the next
    step."""

    call: int
    steps: int | None
    first: int | None


class StopProfile(msgspec.Struct, tag=True, array_like=True):
    """Ends the profile. Ignored if no profile runs."""


class Stop(msgspec.Struct, tag=True, array_like=True):
    """Ends the engine process."""


ToEngine: TypeAlias = (
    Add | Abort | SetSpeculativeDefaults | FlushCache | RecordExperts | StartProfile | StopProfile | Stop
)


class Ready(msgspec.Struct, tag=True, array_like=True):
    """The engine is loaded. startup: facts about it, for people to read."""

    vocab_size: int
    context_length: int
    num_steps: int | None  # None: automatic
    startup: dict[str, object]
    stats: EngineStats
    transfer_port: int = 0  # port at which decode servers fetch pages from a prefill server's engine; 0: none


class Failed(msgspec.Struct, tag=True, array_like=True):
    """The engine could not be loaded."""

    message: str


class Rejected(msgspec.Struct, tag=True, array_like=True):
    """The engine refused a request. busy: the client may try again later."""

    rid: str
    message: str
    busy: bool = False


class Done(msgspec.Struct, tag=True, array_like=True):
    """Call `call` was executed, or failed with `error`."""

    call: int
    error: str | None


class Recorded(msgspec.Struct, tag=True, array_like=True):
    """The record for call `call`; None if no step was recorded."""

    call: int
    record: ExpertRecord | None


class Profiled(msgspec.Struct, tag=True, array_like=True):
    """The result of `StartProfile` with this call number."""

    call: int
    trace: ProcessTrace


class PromptScores(msgspec.Struct, array_like=True):
    """Log-probabilities of the prompt that these requests share. They are in columns, so that the HTTP
    process's loop reads a long prompt in a millisecond; `unpack` may be called in a thread."""

    rids: list[str]
    own: list[float]  # log-probability of each token except the first
    top_ids: list[int]  # the most likely tokens at each position of `own`; the same number for each
    top_logprobs: list[float]

    @classmethod
    def pack(cls, rids: list[str], logprobs: Sequence[TokenLogprob | None]) -> PromptScores:
        """Makes the columns. logprobs: one per token, None for the first."""
        known = [each for each in logprobs if each is not None]
        tops = [pair for each in known for pair in each.top]
        return cls(rids, [each.logprob for each in known], [i for i, _ in tops], [p for _, p in tops])

    def unpack(self) -> list[TokenLogprob | None]:
        count = len(self.top_ids) // max(1, len(self.own))
        tops = list(zip(self.top_ids, self.top_logprobs, strict=True))
        each = (TokenLogprob(p, tops[i * count : (i + 1) * count]) for i, p in enumerate(self.own))
        return [None, *each]


class Tokens(msgspec.Struct, array_like=True):
    """An output that has only tokens, like nearly all outputs. Reading one takes a quarter of the time of an
    `Output`. Made by `tokens_of`."""

    rid: str
    tokens: list[int]
    drafted: list[int]
    cached_tokens: int
    queued: float
    spec: msgspec.Raw  # an encoded `SpecStats`; the HTTP process decodes only a request's last one

    finish_reason: ClassVar[None] = None
    matched: ClassVar[None] = None
    logprobs: ClassVar[None] = None
    matched_logprob: ClassVar[None] = None
    step: ClassVar[None] = None


def tokens_of(out: Output) -> Tokens | None:
    """The output as `Tokens`, or None if it has more than tokens."""
    if (
        out.finish_reason is not None
        or out.logprobs is not None
        or out.prompt_logprobs is not None
        or out.step is not None
        or out.spec is None
    ):
        return None
    spec = cast(msgspec.Raw, out.spec)  # `encode` accepts the `SpecStats` too; the receiver gets it as Raw
    return Tokens(out.rid, out.tokens, out.drafted, out.cached_tokens, out.queued, spec)


class StepOutputs(msgspec.Struct, tag=True, array_like=True):
    """Sent after a step, or after aborts between steps. seconds: how long the engine was busy with it.
    scores: for prompts that are now complete; the outputs themselves have none. tokens: outputs with nothing
    but tokens; if a request is also in `outputs`, its tokens come first."""

    outputs: list[Output]
    stats: EngineStats
    seconds: float
    scores: list[PromptScores] = []
    tokens: list[Tokens] = []


FromEngine: TypeAlias = Ready | Failed | Rejected | Done | Recorded | Profiled | StepOutputs

encode = msgspec.msgpack.Encoder().encode
decode_to_engine = msgspec.msgpack.Decoder(ToEngine).decode
decode_from_engine = msgspec.msgpack.Decoder(FromEngine).decode
decode_spec = msgspec.msgpack.Decoder(SpecStats).decode
