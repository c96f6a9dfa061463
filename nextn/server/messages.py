"""What the HTTP process and the engine process say to each other: msgspec structs in MessagePack.

`Request` objects stay in the engine process; the other side knows a request by its `rid`.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from nextn.request import Output, SamplingParams, SpeculativeParams
from nextn.scheduler.stats import EngineStats


class NewRequest(msgspec.Struct, array_like=True):
    rid: str
    tokens: list[int]
    params: SamplingParams
    priority: int = 0  # larger goes first
    client: str = ""  # "host port" of its connection: grammars of many are compiled in turn


class Add(msgspec.Struct, tag=True, array_like=True):
    """All choices of one HTTP request: one that is refused is told of before the others begin."""

    requests: list[NewRequest]


class Abort(msgspec.Struct, tag=True, array_like=True):
    """The engine frees the pages before its next step; no news of the request follows."""

    rid: str


class SetSpeculativeDefaults(msgspec.Struct, tag=True, array_like=True):
    """For requests that come later; `Done` follows."""

    call: int
    defaults: SpeculativeParams


class FlushCache(msgspec.Struct, tag=True, array_like=True):
    """Drops the prefix cache, unless requests are in the engine; `Done` follows."""

    call: int


class Stop(msgspec.Struct, tag=True, array_like=True):
    """The engine process ends."""


ToEngine: TypeAlias = Add | Abort | SetSpeculativeDefaults | FlushCache | Stop


class Ready(msgspec.Struct, tag=True, array_like=True):
    """The engine is loaded. `startup` is what it allocated, to be shown."""

    vocab_size: int
    context_length: int
    num_drafts: int | None  # None: automatic
    startup: dict[str, object]
    stats: EngineStats


class Failed(msgspec.Struct, tag=True, array_like=True):
    """The engine could not be loaded. `mistake`: the configuration or the checkpoint is no good."""

    message: str
    mistake: bool


class Rejected(msgspec.Struct, tag=True, array_like=True):
    """The engine did not take a request. `busy`: not now; it may be tried again."""

    rid: str
    message: str
    busy: bool = False


class Done(msgspec.Struct, tag=True, array_like=True):
    """Call `call` was carried out, or could not be: `error`."""

    call: int
    error: str | None


class StepNews(msgspec.Struct, tag=True, array_like=True):
    """After a step, or after aborts between steps. `seconds` that the engine was busy for it."""

    outputs: list[Output]
    stats: EngineStats
    seconds: float


FromEngine: TypeAlias = Ready | Failed | Rejected | Done | StepNews

encode = msgspec.msgpack.Encoder().encode
decode_to_engine = msgspec.msgpack.Decoder(ToEngine).decode
decode_from_engine = msgspec.msgpack.Decoder(FromEngine).decode
