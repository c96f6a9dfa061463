"""POST /set_internal_state: what may be changed while the server runs, under SGLang's names.

{"server_args": {"speculative_num_steps": 3}} changes the engine's defaults for requests that come later. What
is not named stays; null goes back to what the server was started with.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import Annotated

from pydantic import PlainValidator, WithJsonSchema

from nextn.request import SpeculativeParams
from nextn.server.body import Body, KnownKeys, like, parse, part, schema_of
from nextn.server.errors import bad_request
from nextn.server.service import Service

log = logging.getLogger("nextn.server")

PREFIX = "speculative_"


ServerArgs = like(SpeculativeParams, "ServerArgs", PREFIX)


def server_args(value: object) -> KnownKeys:
    return part(value, ServerArgs, "server_args")


class SetInternalState(Body):
    server_args: Annotated[KnownKeys, PlainValidator(server_args), WithJsonSchema(schema_of(ServerArgs))]


async def set_internal_state(service: Service, body: bytes | bytearray) -> list[bool]:
    """One "updated" for each engine, as SGLang answers. Raises ApiError naming the field."""
    args = parse(body, SetInternalState).server_args
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
    log.info("defaults of requests to come: %s", in_force(service))
    return [True]


def in_force(service: Service) -> dict[str, object]:
    """The engine's defaults, by their names in `ServerArgs`."""
    ready, speculation = service.engine.ready, service.config.speculation
    if ready is None:
        num_drafts = None if speculation.auto else speculation.num_steps
    else:
        num_drafts = ready.num_drafts
    started = dataclasses.replace(speculation.defaults, num_steps=num_drafts)
    defaults = service.engine.speculative_defaults.or_else(started)
    told = {f"{PREFIX}{name}": value for name, value in dataclasses.asdict(defaults).items()}
    if defaults.num_steps is None:
        told[f"{PREFIX}num_steps"] = "auto"
    return told
