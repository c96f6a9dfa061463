"""How often an engine is started again. What becomes of requests then: tests/e2e/test_server_faults.py."""

from __future__ import annotations

import pytest

from nextn.server.process import supervisor
from nextn.server.process.engine_client import EngineClient
from nextn.server.process.engine_process import make_engine
from nextn.server.process.supervisor import StartupError, Supervisor
from nextn.server_config import ServerConfig


@pytest.mark.parametrize(
    ("most", "deaths", "gives_up_at"),
    [
        (0, [0.0], 0),
        (2, [0.0, 1.0, 2.0], 2),
        (2, [0.0, 1.0, 599.0], 2),
        (2, [0.0, 1.0, 601.0, 602.0, 603.0], 4),  # the first two are forgotten, one after the other
        (1, [0.0, 700.0, 1400.0, 2100.0], None),
    ],
)
def test_restarts_in_ten_minutes(
    most: int, deaths: list[float], gives_up_at: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = EngineClient()
    kept = Supervisor(ServerConfig(max_engine_restarts=most), [client], make_engine)
    for i, now in enumerate(deaths):
        monkeypatch.setattr(supervisor.time, "monotonic", lambda now=now: now)
        if i == gives_up_at:
            with pytest.raises(StartupError, match=f"after {most} restarts in 10 minutes"):
                kept._count_restart()
        else:
            kept._count_restart()
    assert client.metrics.restarts == len(deaths) - (gives_up_at is not None)
