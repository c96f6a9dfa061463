"""POST /set_internal_state: what is sent to the engine, what is refused, what /server_info then says."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from nextn.request import SpeculativeParams
from nextn.server.answers.service import Service
from nextn.server.http.control import ServerArgs, SetInternalState, current_defaults, set_internal_state
from nextn.server.process.engine_client import EngineClient
from nextn.server.process.messages import Done, Ready, SetSpeculativeDefaults, decode_to_engine
from nextn.server.protocol.body import parse
from nextn.server.protocol.errors import ApiError
from nextn.server_config import ServerConfig
from nextn.stats import EngineStats

READY = Ready(258, 1024, 2, {}, EngineStats())


class Socket:
    """Keeps what was sent; the engine behind it does everything but thresholds."""

    def __init__(self, client: EngineClient) -> None:
        self.client = client
        self.sent: list[SpeculativeParams] = []
        self.answers = True

    def send(self, data: bytes) -> None:
        message = decode_to_engine(data)
        assert isinstance(message, SetSpeculativeDefaults)
        self.sent.append(message.defaults)
        bad = message.defaults.accept_threshold_acc is not None
        error = "speculative.accept_threshold_acc is not for me" if bad else None
        if self.answers:
            self.client.receive(Done(message.call, error))


def make() -> tuple[Service, Socket]:
    client = EngineClient()
    socket = Socket(client)
    client.attach(READY, socket)  # type: ignore[arg-type]
    return Service(ServerConfig(), client, None), socket  # type: ignore[arg-type]


async def set_to(service: Service, **args: Any) -> list[bool]:
    body = json.dumps({"server_args": args}).encode()
    return await set_internal_state(service, parse(body, SetInternalState))


def steps(service: Service) -> object:
    return current_defaults(service)["speculative_num_steps"]


async def test_what_is_named_changes_and_the_rest_stays() -> None:
    service, socket = make()
    assert steps(service) == 2
    assert await set_to(service, speculative_num_steps=3) == [True]
    await set_to(service, speculative_verify="exact")
    await set_to(service)
    assert socket.sent == [SpeculativeParams(3), *[SpeculativeParams(3, "exact")] * 2]
    assert current_defaults(service) == {
        "speculative_num_steps": 3, "speculative_verify": "exact",
        "speculative_accept_threshold_single": 1.0, "speculative_accept_threshold_acc": 1.0,
    }  # fmt: skip
    assert set(current_defaults(service)) == set(ServerArgs.model_fields)


async def test_null_is_what_the_server_was_started_with() -> None:
    service, socket = make()
    await set_to(service, speculative_num_steps=0)
    assert steps(service) == 0
    await set_to(service, speculative_num_steps=None)
    assert socket.sent[-1] == SpeculativeParams()
    assert steps(service) == 2


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"speculative_num_steps": 17}, "server_args.speculative_num_steps is 17; it must be between 0"),
        ({"speculative_num_steps": "3"}, "server_args.speculative_num_steps: Input should be"),
        ({"speculative_verify": "x"}, "server_args.speculative_verify is 'x'; it must be one of exact"),
        ({"speculative_accept_threshold_single": 1.5}, "server_args.speculative_accept_threshold_single is"),
        ({"speculative_accept_threshold_acc": 0.5}, "server_args.speculative_accept_threshold_acc is not"),
        ({"pp_max_micro_batch_size": 8}, "server_args.pp_max_micro_batch_size is not known; leave it out"),
        ({"speculative_num_steps": 1, "tp_size": 8}, "server_args.tp_size is not known"),
    ],
)  # fmt: skip
async def test_refused_by_name(args: dict[str, Any], message: str) -> None:
    service, _ = make()
    with pytest.raises(ApiError) as error:
        await set_to(service, **args)
    shown = json.loads(error.value.body)["error"]
    assert error.value.status == 400
    assert shown["message"].startswith(message)
    assert shown["message"].startswith(shown["param"])
    assert steps(service) == 2


@pytest.mark.parametrize("body", [b"{}", b'{"server_args": 3}', b'{"server_args": null}', b"[]", b"x"])
async def test_not_a_change(body: bytes) -> None:
    with pytest.raises(ApiError) as error:
        await set_internal_state(make()[0], parse(body, SetInternalState))
    assert error.value.status == 400


async def test_the_engine_dies_before_it_answers() -> None:
    service, socket = make()
    socket.answers = False
    asking = asyncio.ensure_future(set_to(service, speculative_num_steps=3))
    while not socket.sent:
        await asyncio.sleep(0)
    service.engine.detach("it died")
    with pytest.raises(ApiError, match="it died"):
        await asking
    assert not service.engine.calls
    assert steps(service) == "auto"  # as configured
    with pytest.raises(ApiError, match="the engine is not running"):
        await set_to(service, speculative_num_steps=3)


async def test_a_new_engine_is_told() -> None:
    service, socket = make()
    service.engine.attach(READY, socket)  # type: ignore[arg-type]
    assert socket.sent == []
    await set_to(service, speculative_num_steps=3)
    service.engine.detach("it died")
    service.engine.attach(READY, socket)  # type: ignore[arg-type]
    assert socket.sent == [SpeculativeParams(3)] * 2


async def test_two_changes_at_once_both_hold() -> None:
    service, socket = make()
    await asyncio.gather(
        set_to(service, speculative_num_steps=1), set_to(service, speculative_verify="exact")
    )
    assert socket.sent[-1] == SpeculativeParams(1, "exact")
