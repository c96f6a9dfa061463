"""docs/api.md names every field that is taken, everything that is answered, and every metric."""

from __future__ import annotations

from pathlib import Path

import pytest

from nextn.drafting_state import DraftingState
from nextn.server.http.control import AbortRequest, ServerArgs
from nextn.server.http.profile import ProfileRequest
from nextn.server.http.tokens import DetokenizeRequest, TokenizeRequest
from nextn.server.monitoring.metrics import Metrics
from nextn.server.process.engine_client import EngineClient
from nextn.server.protocol.fields import Speculative
from nextn.server.protocol.native import GenerateRequest, NativeSampling
from nextn.server.protocol.openai import ChatRequest, CompletionRequest, StreamOptions
from nextn.server.protocol.responses import SpecDetails, SpecTokensDetails
from nextn.stats import EngineStats, SpecStats, TransferStats

TEXT = (Path(__file__).parents[4] / "docs" / "api.md").read_text()


@pytest.mark.parametrize(
    "body",
    [
        CompletionRequest,
        ChatRequest,
        GenerateRequest,
        NativeSampling,
        ServerArgs,
        Speculative,
        StreamOptions,
        AbortRequest,
        ProfileRequest,
        TokenizeRequest,
        DetokenizeRequest,
    ],
)
def test_fields(body: type) -> None:
    assert [name for name in body.model_fields if f"`{name}`" not in TEXT] == []  # type: ignore[attr-defined]


@pytest.mark.parametrize("struct", [SpecDetails, SpecTokensDetails])
def test_figures(struct: type) -> None:
    assert [name for name in struct.__struct_fields__ if f"`{name}`" not in TEXT] == []  # type: ignore[attr-defined]


def test_metrics() -> None:
    engine = EngineClient()
    auto = DraftingState(True, 1, 1.5, "")
    spec = SpecStats(1, [1], [1], 2, [0, 1])
    engine.metrics.on_step(EngineStats(spec=spec, auto=auto, transfer=TransferStats()), 1.0)
    lines = Metrics(engine).render().decode().splitlines()
    names = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    names = {name for name in names if not name.endswith("_created")}
    assert len(names) > 20
    assert sorted(name for name in names if f"`{name}" not in TEXT) == []
