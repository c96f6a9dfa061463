"""The fields with which a gateway hands one request to two servers: a prefill server computes the prompt, and
a decode server the answer (docs/disaggregation.md). There are two protocols.

SGLang: both servers get the same body, with `bootstrap_room` and the address of the prefill server's
bootstrap port. In a body with several prompts, each prompt has its own room.

vLLM: the prefill server gets `kv_transfer_params` with do_remote_decode, and draws a room. Its answer has the
`kv_transfer_params` that the gateway must send to the decode server.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, PrivateAttr, WithJsonSchema

from nextn.disaggregation.remote import Remote
from nextn.server.protocol.body import Body, json_type
from nextn.server.protocol.errors import ApiError, bad_request

if TYPE_CHECKING:
    from typing_extensions import Self

ROOMS = 2**63
DRAWN_BITS = 52  # of a room drawn here: JSON readers that use doubles read it exactly
BOOTSTRAP_PORT = 8998
FAKE_HOST = "2.2.2.2"  # in SGLang's warm-up requests, which involve no other server
FIELDS = ("bootstrap_room", "bootstrap_host", "bootstrap_port", "disagg_prefill_dp_rank")
PARAMS = "kv_transfer_params"


def one_or_many(kind: str, **more: object) -> WithJsonSchema:
    each = {"anyOf": [{"type": kind, **more}, {"type": "null"}]}
    return WithJsonSchema({"anyOf": [each, {"type": "array", "items": each}]})


class HandedOff(Body):
    """A body whose prompts may be computed by another server. Call `for_server` before everything else."""

    # Checked by `for_server`, because the checks need the number of prompts.
    bootstrap_host: Annotated[
        Any,
        one_or_many("string"),
        Field(description="host of the prefill server; one value, or one for each prompt"),
    ] = None
    bootstrap_port: Annotated[
        Any,
        one_or_many("integer"),
        Field(description=f"port of the prefill server; default: {BOOTSTRAP_PORT}"),
    ] = None
    bootstrap_room: Annotated[
        Any,
        one_or_many("integer", minimum=0),
        Field(description="the prompt's number on both servers, below 2**63; prompt i has room + i"),
    ] = None
    disagg_prefill_dp_rank: Annotated[
        Any, one_or_many("integer", minimum=0), Field(description="the prefill server's replica")
    ] = None
    kv_transfer_params: Annotated[
        Any, WithJsonSchema({"type": "object"}), Field(description="vLLM's form of the bootstrap fields")
    ] = None

    _mode: str = PrivateAttr("null")
    _remotes: list[Remote | None] | None = PrivateAttr(None)
    _drawn: int | None = PrivateAttr(None)

    def for_server(self, mode: str) -> Self:
        """The part of the request that a server with this --disaggregation-mode computes. Raises ApiError
        (400)."""
        named = [name for name in FIELDS if not is_unset(getattr(self, name))]
        params = self._transfer_params()
        if params is not None:
            named.append(PARAMS)
        if not named:
            return self
        if mode == "null":
            raise bad_request(
                f"{named[0]}: this server computes whole requests; it was started without "
                "--disaggregation-mode prefill or decode",
                named[0],
            )
        if params is not None and len(named) > 1:
            raise bad_request(f"{PARAMS} and {named[0]} are given; leave one of them out", PARAMS)
        count = len(self.prompts())
        if params is None:
            remotes = self._bootstrapped(mode, count)
        else:
            remotes = self._transferred(mode, count, params)
        if not any(remotes):
            return self
        if self.scores_prompts:
            remotes, self._drawn = [None] * count, None
        self._mode, self._remotes = mode, remotes
        return self.prompt_only() if self.prefill_only else self

    @property
    def prefill_only(self) -> bool:
        """Whether this server computes only the prompt, and another one the answer."""
        return self._mode == "prefill"

    @property
    def scores_prompts(self) -> bool:
        """Whether the answer has log-probabilities of the prompts. If so, the decode server computes the
        prompts itself and nothing is handed off. Gateways can merge the log-probabilities of both servers,
        but not in streams, in batches, for OpenAI's endpoints, or after the prefill server has died."""
        return False

    @property
    def choices(self) -> int:
        """Number of choices per prompt. Gateways may send one room per choice; only the first is used."""
        return 1

    def prompt_only(self) -> Self:
        """A copy without the fields that affect only the answer: the decode server makes the answer."""
        return self

    def remotes(self, count: int) -> list[Remote | None]:
        """For each prompt: on a decode server, where its pages come from; on a prefill server, the room under
        which they are fetched. None: the prompt is not handed off."""
        return [None] * count if self._remotes is None else self._remotes

    def answer_params(self, engine_id: str, host: str, port: int) -> dict[str, object] | None:
        """The `kv_transfer_params` for the decode server. None if the gateway uses SGLang's protocol, or
        nothing is handed off. host, port: address of the bootstrap port."""
        if self._drawn is None:
            return None
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_engine_id": engine_id,
            "remote_block_ids": [],
            "remote_host": host,
            "remote_port": port,
            "remote_request_id": str(self._drawn),
        }

    def _bootstrapped(self, mode: str, count: int) -> list[Remote | None]:
        room, host, port, rank = (self._of_prompts(name, count) for name in FIELDS)
        rooms = rooms_of(room, count)
        hosts = one_per_prompt(host, count, "bootstrap_host", str)
        ports = one_per_prompt(port, count, "bootstrap_port", int)
        ranks = one_per_prompt(rank, count, "disagg_prefill_dp_rank", int)
        remotes: list[Remote | None] = []
        for room, host, port, rank in zip(rooms, hosts, ports, ranks, strict=True):
            port = BOOTSTRAP_PORT if port is None else port
            check_range(port, 1, 65535, "bootstrap_port")
            check_range(0 if rank is None else rank, 0, 2**31, "disagg_prefill_dp_rank")
            if room is None or host == FAKE_HOST:
                remotes.append(None)
            elif mode == "prefill":
                remotes.append(Remote(room))
            else:
                if not host:
                    raise bad_request(
                        "bootstrap_host is missing; send the prefill server's host", "bootstrap_host"
                    )
                remotes.append(Remote(room, without_brackets(host), port, rank))
        return remotes

    def _of_prompts(self, name: str, count: int) -> Any:
        """A field's value. If there is one prompt, and the list has an entry for each choice, only the first
        entry remains."""
        value = getattr(self, name)
        if count == 1 and isinstance(value, list) and len(value) == self.choices:
            return value[:1]
        return value

    def _transfer_params(self) -> dict[str, Any] | None:
        """The field `kv_transfer_params`, or None if it asks for no transfer. Raises ApiError (400)."""
        params = self.kv_transfer_params
        if params is None:
            return None
        if not isinstance(params, dict):
            raise bad_request(f"{PARAMS} must be an object, not {json_type(params)}", PARAMS)
        for name in ("do_remote_decode", "do_remote_prefill"):
            if not isinstance(params.get(name), bool | None):
                raise bad_request(f"{PARAMS}.{name} must be true or false", f"{PARAMS}.{name}")
        return params if params.get("do_remote_decode") or params.get("do_remote_prefill") else None

    def _transferred(self, mode: str, count: int, params: dict[str, Any]) -> list[Remote | None]:
        own, other = "do_remote_decode", "do_remote_prefill"
        if mode == "decode":
            own, other = other, own
        if params.get(other):
            raise bad_request(
                f"{PARAMS}.{other} is true, and this is a {mode} server (--disaggregation-mode), which takes "
                f"{own}",
                f"{PARAMS}.{other}",
            )
        if mode == "prefill":
            self._drawn = secrets.randbits(DRAWN_BITS)
            return [Remote(room) for room in counted_from(self._drawn, count)]
        host, port = params.get("remote_host"), params.get("remote_port")
        named = params.get("remote_request_id")
        if not isinstance(host, str) or not host:
            raise wrong("remote_host", "a prefill server's host")
        if type(port) is not int or not 1 <= port <= 65535:
            raise wrong("remote_port", "a prefill server's bootstrap port")
        if not isinstance(named, str) or not (named.isascii() and named.isdecimal() and len(named) < 20):
            raise wrong("remote_request_id", "the room from the answer of a nextn prefill server")
        first = int(named)
        check_range(first, 0, ROOMS - 1, f"{PARAMS}.remote_request_id")
        return [Remote(room, without_brackets(host), port) for room in counted_from(first, count)]


def wrong(name: str, rule: str) -> ApiError:
    return bad_request(f"{PARAMS}.{name} must be {rule}", f"{PARAMS}.{name}")


def is_unset(value: object) -> bool:
    return value is None or (isinstance(value, list) and all(each is None for each in value))


def without_brackets(host: str) -> str:
    """The host without the brackets that gateways put around an IPv6 address."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def counted_from(room: int, count: int) -> list[int]:
    """The rooms of `count` prompts, numbered as in SGLang.

    >>> counted_from(7, 3)
    [7, 8, 9]
    """
    return [(room + i) % ROOMS for i in range(count)]


def rooms_of(value: Any, count: int) -> list[int | None]:
    """The room of each of `count` prompts. value: one room, a list, or None. Raises ApiError (400)."""
    name = "bootstrap_room"
    rooms = one_per_prompt(value, count, name, int)
    for room in rooms:
        check_range(0 if room is None else room, 0, ROOMS - 1, name)
    if not isinstance(value, list) and value is not None:
        return [*counted_from(value, count)]
    known = [room for room in rooms if room is not None]
    if len(set(known)) < len(known):
        raise bad_request(f"{name}: each prompt needs its own room, and some are equal", name)
    return rooms


def check_range(value: int, least: int, most: int, name: str) -> None:
    if not least <= value <= most:
        raise bad_request(f"{name} is {value}; it must be between {least} and {most}", name)


KINDS = {int: "a whole number", str: "a string"}


def one_per_prompt(value: Any, count: int, name: str, kind: type) -> list[Any]:
    """A list with one value (or None) for each prompt. value: one for all prompts, or a list. Raises ApiError
    (400)."""
    many = value if isinstance(value, list) else [value] * count
    if not all(each is None or type(each) is kind for each in many):
        raise bad_request(f"{name} must be {KINDS[kind]}, or a list with one for each prompt", name)
    if len(many) != count:
        raise bad_request(f"{name} is a list of {len(many)}; the number of prompts is {count}", name)
    return many
