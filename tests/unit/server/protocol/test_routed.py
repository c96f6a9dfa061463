"""How a request names a replica."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nextn.server.protocol.body import parse
from nextn.server.protocol.errors import ApiError
from nextn.server.protocol.native import GenerateRequest
from nextn.server.protocol.openai import ChatRequest, CompletionRequest
from nextn.server.protocol.routed import HEADER, Routed

KINDS: list[tuple[type[Routed], dict[str, Any]]] = [
    (CompletionRequest, {"prompt": "x"}),
    (ChatRequest, {"messages": [{"role": "user", "content": "x"}]}),
    (GenerateRequest, {"text": "x"}),
]


def read(kind: type[Routed], body: dict[str, Any]) -> Routed:
    return parse(json.dumps(body).encode(), kind)


@pytest.mark.parametrize(("kind", "body"), KINDS)
def test_both_names(kind: type[Routed], body: dict[str, Any]) -> None:
    assert read(kind, body).rank(2) is None
    for fields in ({"routed_dp_rank": 1}, {"data_parallel_rank": 1}):
        assert read(kind, body | fields).rank(2) == 1
    assert read(kind, body | {"routed_dp_rank": 1, "data_parallel_rank": 1}).rank(2) == 1
    with pytest.raises(ApiError, match="routed_dp_rank is 1 and data_parallel_rank is 0") as refused:
        read(kind, body | {"routed_dp_rank": 1, "data_parallel_rank": 0})
    assert refused.value.param == "routed_dp_rank"


@pytest.mark.parametrize("name", ["routed_dp_rank", "data_parallel_rank"])
def test_out_of_range(name: str) -> None:
    for rank, count, there in (
        (2, 2, "the replicas are 0 to 1"),
        (-1, 2, "the replicas are"),
        (1, 1, "one replica, 0"),
    ):
        with pytest.raises(ApiError, match=there) as refused:
            read(CompletionRequest, {"prompt": "x", name: rank}).rank(count)
        assert (refused.value.status, refused.value.param) == (400, name)
    assert read(CompletionRequest, {"prompt": "x", name: 0}).rank(1) == 0
    with pytest.raises(ApiError, match=f"{name}: "):
        read(CompletionRequest, {"prompt": "x", name: "1"})


def test_the_header() -> None:
    def taken(value: str, **fields: int) -> int | None:
        body = read(CompletionRequest, {"prompt": "x", **fields})
        body.take_header(value)
        return body.rank(4)

    assert taken("3") == taken("3", routed_dp_rank=3) == taken("3", data_parallel_rank=3) == 3
    for value in ("", "-1", "one", "1.0", "²", "9" * 10):
        with pytest.raises(ApiError, match=HEADER):
            taken(value)
    with pytest.raises(ApiError, match=f"{HEADER} is 1, and the body says 0|{HEADER} is 1"):
        taken("1", data_parallel_rank=0)
    with pytest.raises(ApiError, match="routed_dp_rank is 4"):
        taken("4")
