"""What ranks say to each other is data, and nothing else is read."""

from __future__ import annotations

import os
import pickle
from array import array
from typing import Any

import pytest

from nextn.constraint import Constraint
from nextn.cutoff import Cutoff
from nextn.distributed import wire
from nextn.draft import Draft
from nextn.request import SamplingParams, SpeculativeParams
from nextn.scheduler.plan import Plan, SpanPlan
from nextn.speculative.state import RequestState


def test_what_an_engine_sends() -> None:
    draft = Draft(array("i", [7, 8]), [-1, -1], [-0.5, -1.0], b"\1\2")
    span = SpanPlan("a", 3, 1, draft, True, 0, array("i", [4, 5]), 2, scores=range(2))
    params = SamplingParams(
        temperature=0.5, logit_bias={3: 1.0}, stop_token_ids=[9], speculative=SpeculativeParams(num_steps=2),
        constraint=Constraint("regex", "a+"),
    )  # fmt: skip
    state = RequestState("a", params, [1, 2, 3], 3, 20, frozenset({0}))
    cutoff = Cutoff(*(None for _ in Cutoff._fields))  # type: ignore[arg-type]
    for message in (Plan([span], cutoff, True), "a", wire.Ended("why"), b"digest", ValueError("no")):
        found = wire.loads(wire.dumps(message))
        assert type(found) is type(message)
        assert repr(found) == repr(message)
    found = wire.loads(wire.dumps(state))
    assert (found.rid, found.params, found.history, found.end_ids) == ("a", params, [1, 2, 3], {0})


class Evil:
    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> Any:
        return self.call[0], self.call[1:]


@pytest.mark.parametrize(
    "call", [(os.system, "true"), (eval, "1"), (getattr, "a", "upper"), (open, "/dev/null")]
)
def test_what_it_does_not_send_is_not_read(call: Any) -> None:
    with pytest.raises(pickle.UnpicklingError, match="is nothing that ranks exchange"):
        wire.loads(pickle.dumps(Evil(*call)))


def test_functions_and_foreign_names_of_its_modules_are_not_read() -> None:
    for module, name in (
        ("nextn.draft", "draft_window"), ("nextn.draft", "dataclass"), ("nextn.draft", "Draft.cut"),
        ("nextn.distributed.process", "RankProcess"), ("nextn.distributed.wire", "os"),
    ):  # fmt: skip
        with pytest.raises(pickle.UnpicklingError):
            wire.loads(b"c" + module.encode() + b"\n" + name.encode() + b"\n.")
