"""What an engine process does before it builds its engine. The rest: test_engine_loop.py."""

from __future__ import annotations

import pytest
import torch

from nextn.server.process.engine_process import take_gpu
from nextn.server_config import ServerConfig


def test_each_replica_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    take_gpu(ServerConfig(dp_size=2), 1)
    take_gpu(ServerConfig(dp_size=3, device="cpu"), 2)
    take_gpu(ServerConfig(tp_size=2), 0)
    take_gpu(ServerConfig(dp_size=3, tp_size=2, distributed_executor_backend="ray"), 2)  # Ray chooses
    assert taken == [1, 0]
    with pytest.raises(ValueError, match="--dp-size 2: each replica needs 2 GPUs, and there are 2"):
        take_gpu(ServerConfig(dp_size=2, tp_size=2), 1)
    with pytest.raises(ValueError, match="--dp-size 3: each replica needs a GPU, and there are 2"):
        take_gpu(ServerConfig(dp_size=3), 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    take_gpu(ServerConfig(dp_size=3), 0)
