"""Reads the bodies of requests. Large ones are parsed in another process: JSON is parsed in one go, and no
other request would be served meanwhile."""

from __future__ import annotations

from starlette.requests import Request

from nextn.server.answers.service import Service
from nextn.server.process.side_process import SideProcess
from nextn.server.prompts.bound import Bound
from nextn.server.protocol.body import Kind, check_values, parse
from nextn.server.protocol.errors import ApiError, prompt_in
from nextn.server.protocol.handoff import HandedOff
from nextn.server.protocol.routed import HEADER, Routed
from nextn.trace import TRACE

LARGE_BODY = 2**18  # bytes; parsing takes 0.1 to 30 ms a megabyte


class Bodies:
    def __init__(self, service: Service) -> None:
        self.service = service
        self.side = SideProcess()

    async def read(self, request: Request, kind: type[Kind], empty: bool = False) -> Kind:
        """empty: there may be no body. Raises ApiError that says what is wrong with the body."""
        body = await read_body(request, self.service.config.max_request_bytes)
        if empty and not body:
            body += b"{}"
        if len(body) <= LARGE_BODY:
            lap = TRACE.laps("server")
            read = parse(body, kind)
            lap("parse")
        else:
            read = await self.side.call(parse_large, body, kind, self.service.bound())
        if isinstance(read, Routed) and HEADER in request.headers:
            read.take_header(request.headers[HEADER])
        if isinstance(read, HandedOff):
            read = read.for_server(self.service.config.disaggregation_mode)
        return read


def parse_large(body: bytes, kind: type[Kind], bound: Bound | None) -> Kind:
    """As `parse`. What is certain to be refused is refused here, as even the parts of a large body take time
    to be sent back."""
    check_values(body)
    request = parse(body, kind)
    if bound is not None:
        with prompt_in(request.prompt_field):
            bound.check(request.given())
    return request


async def read_body(request: Request, most: int) -> bytearray:
    """Raises ApiError (413) as soon as the body is longer than `most` bytes."""
    too_long = ApiError(413, f"the body is longer than {most} bytes (--max-request-bytes)")
    if int(request.headers.get("content-length", 0)) > most:
        raise too_long
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > most:
            raise too_long
    return body
