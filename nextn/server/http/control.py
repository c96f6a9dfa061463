"""Controls a running server: ends requests, empties the prefix cache, checks that an engine responds, changes
defaults.

POST /set_internal_state takes SGLang's names: {"server_args": {"speculative_num_steps": 3}} changes the
engine's defaults for later requests. Fields that are left out keep their values. null restores the value from
the server's start.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import uuid
from typing import Annotated

from pydantic import PlainValidator, WithJsonSchema

from nextn.request import SamplingParams, SpeculativeParams
from nextn.server.answers.service import Service
from nextn.server.process.engine_client import EngineClient
from nextn.server.process.inbox import Inbox
from nextn.server.process.messages import NewRequest
from nextn.server.protocol.body import Body, KnownKeys, parse_object, partial_model, schema_of
from nextn.server.protocol.errors import ApiError, bad_request

log = logging.getLogger("nextn.server")

PREFIX = "speculative_"
HEALTH_SECONDS = 20.0  # time limit for a message from an engine


class AbortRequest(Body):
    """rid: a prefix; all requests whose id begins with it end. An id is the answer's id, or the rid that the
    client sent."""

    rid: str = ""
    abort_all: bool = False

    def check(self) -> None:
        if not self.rid and not self.abort_all:
            raise bad_request("rid is missing; give the id of a request, or abort_all", "rid")


def abort_request(service: Service, request: AbortRequest) -> None:
    """Ends requests with the text they have so far, and finish_reason "abort". An unknown id is no error: the
    request may have ended already."""
    service.engine.end("" if request.abort_all else request.rid)


async def flush_cache(service: Service) -> bool:
    """Empties the prefix cache. While there are requests, it does nothing and returns False."""
    service.check_open()
    try:
        await service.engine.flush_cache()
    except ValueError:
        return False
    return True


async def check_engine(service: Service) -> None:
    """Waits until an engine sends a message: about running requests, or about a request for one token, which
    an idle engine gets here. Raises ApiError (503) if none comes within HEALTH_SECONDS."""
    service.check_open()
    up = [client for client in service.engine.ranks if client.ready is not None]
    listening = [asyncio.ensure_future(next_message(client)) for client in up]
    try:
        done, _ = await asyncio.wait(listening, timeout=HEALTH_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in listening:
            task.cancel()
        await asyncio.gather(*listening, return_exceptions=True)
    if not done:
        message = f"the engine has not responded for {HEALTH_SECONDS:.0f} s"
        raise ApiError(503, message, "service_unavailable", code="engine_unresponsive")


async def next_message(client: EngineClient) -> None:
    """Returns when the engine has sent a message."""
    client.heard.clear()
    rid = f"health-{uuid.uuid4().hex}"
    if not client.active:
        params = SamplingParams(max_tokens=1, temperature=0, speculative=SpeculativeParams(num_steps=0))
        client.submit([NewRequest(rid, [0], params)], Inbox())
    try:
        await client.heard.wait()
    finally:
        client.abort(rid)


ServerArgs = partial_model(SpeculativeParams, "ServerArgs", PREFIX)
ServerArgs.__module__ = __name__  # pickle looks the class up in this module


def server_args(value: object) -> KnownKeys:
    return parse_object(value, ServerArgs, "server_args")


class SetInternalState(Body):
    server_args: Annotated[KnownKeys, PlainValidator(server_args), WithJsonSchema(schema_of(ServerArgs))]


async def set_internal_state(service: Service, request: SetInternalState) -> list[bool]:
    """Changes the engines' defaults. Returns True for each engine ("updated", as in SGLang). Raises ApiError
    that names the wrong field."""
    args = request.server_args
    service.check_open()
    async with service.changing:
        given = {name.removeprefix(PREFIX): getattr(args, name) for name in args.model_fields_set}
        defaults = dataclasses.replace(service.engine.speculative_defaults, **given)
        try:
            defaults.check()
            await service.engine.set_speculative_defaults(defaults)
        except ValueError as e:
            message = str(e).replace("speculative.", f"server_args.{PREFIX}")
            raise bad_request(message, message.partition(" ")[0]) from e
    log.info("defaults for later requests: %s", current_defaults(service))
    return [True] * service.config.dp_size


def current_defaults(service: Service) -> dict[str, object]:
    """The engine's current defaults, under their names in `ServerArgs`."""
    ready, speculation = service.engine.ready, service.config.speculation
    if ready is None:
        num_steps = None if speculation.auto else speculation.num_steps
    else:
        num_steps = ready.num_steps
    started = dataclasses.replace(speculation.defaults, num_steps=num_steps)
    defaults = service.engine.speculative_defaults.or_else(started)
    named = {f"{PREFIX}{name}": value for name, value in dataclasses.asdict(defaults).items()}
    if defaults.num_steps is None:
        named[f"{PREFIX}num_steps"] = "auto"
    return named
