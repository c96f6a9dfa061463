"""The fields with which a client or a gateway chooses a replica of this server."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from nextn.server.protocol.body import Body
from nextn.server.protocol.errors import bad_request

HEADER = "X-Data-Parallel-Rank"


class Routed(Body):
    routed_dp_rank: (
        Annotated[int, Field(description="the replica for the request; default: the server chooses")] | None
    ) = None
    data_parallel_rank: Annotated[int, Field(description="older name of routed_dp_rank")] | None = None

    def check(self) -> None:
        super().check()
        old, new = self.data_parallel_rank, self.routed_dp_rank
        if old is not None and new is not None and old != new:
            raise bad_request(
                f"routed_dp_rank is {new} and data_parallel_rank is {old}; they mean the same, so leave one "
                "of them out",
                "routed_dp_rank",
            )

    def take_header(self, value: str) -> None:
        """Takes the replica from the request's header. Raises ApiError (400) if the header is no number, or
        the body names another replica."""
        if not (value.isascii() and value.isdecimal() and len(value) < 10):
            raise bad_request(f"the header {HEADER} must be a replica's number", HEADER)
        given = self.data_parallel_rank if self.routed_dp_rank is None else self.routed_dp_rank
        if given is not None and given != int(value):
            raise bad_request(
                f"the header {HEADER} is {value} and the body names replica {given}; leave one of them out",
                HEADER,
            )
        if given is None:
            self.routed_dp_rank = int(value)

    def rank(self, count: int) -> int | None:
        """The requested replica, below `count`; None means any. Raises ApiError (400) if there is no such
        replica."""
        name = "data_parallel_rank" if self.routed_dp_rank is None else "routed_dp_rank"
        rank: int | None = getattr(self, name)
        if rank is not None and not 0 <= rank < count:
            there = "there is one replica, 0" if count == 1 else f"the replicas are 0 to {count - 1}"
            raise bad_request(f"{name} is {rank}; {there} (--dp-size {count})", name)
        return rank
