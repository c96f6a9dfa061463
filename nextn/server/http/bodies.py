"""Reads and parses request bodies. Large bodies are parsed in another process, because the parser cannot be
interrupted and would hold up all other requests."""

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
        """Reads and parses a request's body. empty: the body may be missing. Raises ApiError with the reason
        if the body is too long or wrong."""
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
    """Like `parse`, in the side process. Bodies that would be refused later are refused here, because sending
    even the parts of a large body back to the server takes time. Raises ApiError."""
    check_values(body)
    request = parse(body, kind)
    if bound is not None:
        with prompt_in(request.prompt_field):
            bound.check(request.prompts())
    return request


async def read_body(request: Request, most: int) -> bytearray:
    """Reads a request's body. Raises ApiError (413) as soon as it is longer than `most` bytes."""
    too_long = ApiError(413, f"the body is longer than {most} bytes (--max-request-bytes)")
    if int(request.headers.get("content-length", 0)) > most:
        raise too_long
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > most:
            raise too_long
    return body
