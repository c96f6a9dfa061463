"""A prefill server's bootstrap port: decode servers ask it which engine has a request, and at which address
that engine listens. Clients can write nothing: the server itself registers its engines and rooms.

The port needs no API key. An answer about a room is useful only to those who know the room, a random number
below 2**63 that the gateway draws.
"""

from __future__ import annotations

import json
import socket
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from nextn.server.http.bodies import read_body
from nextn.server.process.engines import Engines
from nextn.server.process.rooms import Rooms
from nextn.server.protocol.errors import ApiError, bad_request
from nextn.server.protocol.handoff import ROOMS
from nextn.server_config import ServerConfig

MOST_BYTES = 2**20  # of a body
MOST_ROOMS = 2**14  # in one query
WILDCARDS = ("0.0.0.0", "::")


def bootstrap_app(config: ServerConfig, engines: Engines, rooms: Rooms, http_port: int) -> Starlette:
    """The application behind the bootstrap port. http_port: the server's own port."""

    async def health(request: Request) -> Response:
        up = engines.ready is not None
        return Response("OK" if up else "the engine is not running", 200 if up else 503)

    async def route(request: Request) -> Response:
        given = request.query_params.get("bootstrap_room")
        if given is None:
            if engines.ready is None:
                message = "the engine is not running"
                raise ApiError(503, message, "service_unavailable", code="engine_unavailable")
            return JSONResponse(info(config, http_port))
        if not (given.isascii() and given.isdecimal() and len(given) < 20 and int(given) < ROOMS):
            raise bad_request("bootstrap_room must be a number below 2**63", "bootstrap_room")
        room = int(given)
        known = rooms.find(room)  # a decode server that asks too early gets 404 and asks again
        if known is None:
            raise ApiError(
                404, f"no request has the room {room}", param="bootstrap_room", code="unknown_room"
            )
        if known.lost or engines.ranks[known.rank].ready is not known.ready:
            raise ApiError(
                410, f"the request of room {room} was lost", param="bootstrap_room", code="lost_room"
            )
        host = (request.scope.get("server") or (config.host, 0))[0]  # to which the client connected
        place = {"host": host, "port": known.ready.transfer_port, "dp_rank": known.rank, "room": room}
        return JSONResponse(place)

    async def dp_ranks(request: Request) -> Response:
        try:
            body: Any = json.loads(await read_body(request, MOST_BYTES))
            asked = [int(room) for room in body["bootstrap_rooms"][:MOST_ROOMS]]
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as e:
            raise bad_request("the body must be an object with a list of bootstrap_rooms") from e
        found = ((room, rooms.find(room)) for room in asked)
        return JSONResponse({str(room): known.rank for room, known in found if known is not None})

    async def refused(request: Request) -> Response:
        message = (
            f"{request.method} {request.url.path}: this server registers its engines and rooms by itself"
        )
        raise ApiError(403, message, code="not_registered_here")

    async def api_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        return Response(error.body, error.status, error.headers, "application/json")

    async def gone(request: Request, error: Exception) -> Response:
        return Response(status_code=499)

    return Starlette(
        routes=[
            Route("/health", health),
            Route("/route", route),
            Route("/route", refused, methods=["PUT", "POST"]),
            Route("/register_dp_rank", refused, methods=["PUT", "POST"]),
            Route("/query_dp_ranks", dp_ranks, methods=["POST"]),
        ],
        exception_handlers={ApiError: api_error, ClientDisconnect: gone},
    )


def info(config: ServerConfig, http_port: int) -> dict[str, object]:
    """The server's layout, under SGLang's names."""
    return {
        "attn_tp_size": config.tp_size // config.attention_dp,
        "attn_cp_size": 1,
        "dp_size": config.dp_size,
        "pp_size": 1,
        "page_size": config.page_size,
        "kv_cache_dtype": "auto",
        "follow_bootstrap_room": False,
        "enable_dsa_cache_layer_split": False,
        "prefill_http_port": http_port,
    }


def reachable(listener: socket.socket) -> tuple[str, int]:
    """The address and port at which other machines reach a listening socket. For a socket that listens on all
    addresses, this is `own_address()`."""
    host, port = listener.getsockname()[:2]
    return own_address() if host in WILDCARDS else host, port


def own_address() -> str:
    """This machine's address in its network, or the loopback address if it has no network. Sends nothing."""
    probes = ((socket.AF_INET, ("192.0.2.1", 9)), (socket.AF_INET6, ("2001:db8::1", 9)))
    for family, beyond in probes:
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(beyond)
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return "127.0.0.1"
