"""What is done to a running server: requests are ended, the cache is dropped, its life is looked for."""

from __future__ import annotations

import asyncio
import uuid

from nextn.request import SamplingParams, SpeculativeParams
from nextn.server.answers.service import Service
from nextn.server.process.engine_client import News
from nextn.server.process.messages import NewRequest
from nextn.server.protocol.body import Body
from nextn.server.protocol.errors import ApiError, bad_request

HEALTH_SECONDS = 20.0  # for the engine to say anything


class AbortRequest(Body):
    """`rid`: the beginning of the ids of those to end: an answer's id, or the rid that was sent."""

    rid: str = ""
    abort_all: bool = False

    def check(self) -> None:
        if not self.rid and not self.abort_all:
            raise bad_request("rid is missing; give the id of a request, or abort_all", "rid")


def abort_request(service: Service, request: AbortRequest) -> None:
    """They end as they are, with finish_reason "abort". No such id is no error: a request may have ended."""
    service.engine.end("" if request.abort_all else request.rid)


async def flush_cache(service: Service) -> bool:
    """False, and nothing done, while there are requests."""
    service.check_open()
    try:
        await service.engine.flush_cache()
    except ValueError:
        return False
    return True


async def check_engine(service: Service) -> None:
    """Waits for a sign of life from the engine: what it says of running requests, else a token that is asked
    for. Raises ApiError when there is none."""
    service.check_open()
    engine = service.engine
    engine.heard.clear()
    rid = f"health-{uuid.uuid4().hex}"
    if not engine.active:
        params = SamplingParams(max_tokens=1, temperature=0, speculative=SpeculativeParams(num_steps=0))
        engine.submit([NewRequest(rid, [0], params)], asyncio.Queue[News]())
    try:
        await asyncio.wait_for(engine.heard.wait(), HEALTH_SECONDS)
    except asyncio.TimeoutError as e:
        message = f"the engine has said nothing for {HEALTH_SECONDS:.0f} s"
        raise ApiError(503, message, "service_unavailable", code="engine_unresponsive") from e
    finally:
        engine.abort(rid)
