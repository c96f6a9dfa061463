"""An engine whose ranks meet as on GPUs, by torch.distributed, with their arrays in the host's memory."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from support.engine_runs import executor_of, go_on, request
from support.host_gpus import HostGpus
from support.processes import runs

from nextn.config import EngineConfig
from nextn.distributed.gpus import HOST
from nextn.distributed.group import PeerGone
from nextn.distributed.torch_group import TorchGroup
from nextn.engine import gang, tensor_parallel
from nextn.engine.engine import Engine
from nextn.engine.tensor_parallel import TensorParallelExecutor
from nextn.request import Request, SamplingParams

CHOICES = [
    SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True),
    SamplingParams(max_tokens=12, temperature=1.0, seed=3, ignore_eos=True),
]


def share(monkeypatch: pytest.MonkeyPatch, kind: type[HostGpus]) -> None:
    def shared(config: EngineConfig) -> tuple[HostGpus, socket.socket]:
        listener = socket.create_server((HOST, 0))
        return kind(listener.getsockname()[1], 0, "gloo"), listener

    monkeypatch.setattr(gang, "gpus_of", shared)


@pytest.fixture
def by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    share(monkeypatch, HostGpus)


def made(tp_size: int) -> Engine:
    return Engine(
        EngineConfig(
            tp_size=tp_size, threads=1, kernel_backend="reference", kv_cache_tokens=1024,
            speculative_num_steps=2, check_integrity=True, step_cost_cache="off",
        )
    )  # fmt: skip


def tokens(engine: Engine) -> list[list[int]]:
    found: dict[str, list[int]] = {}
    for number, params in enumerate(CHOICES):
        engine.add(Request(str(number), [5, 6, 7], params))
    while engine.has_work():
        for out in engine.step():
            found.setdefault(out.rid, []).extend(out.tokens)
    return [found[str(number)] for number in range(len(CHOICES))]


@pytest.mark.usefixtures("by_torch")
def test_texts_are_those_of_one_rank() -> None:
    """Again in the same process, too: a group that was left can be joined anew."""
    want = tokens(made(1))
    for _ in range(2):
        engine = made(2)
        executor = executor_of(engine)
        assert isinstance(executor._runner.model.group, TorchGroup)
        assert tokens(engine) == want
        [process] = executor.processes.values()
        executor.close()
        assert not runs(process.pid)


class BrokenGpus(HostGpus):
    def take(self, rank: int) -> None:
        if rank == 1:
            raise ValueError("GPU 1 has no memory left")


def test_what_a_rank_refuses_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """And rank 0 does not wait for it."""
    share(monkeypatch, BrokenGpus)
    with pytest.raises(ValueError, match="GPU 1 has no memory left"):
        made(2)


@pytest.mark.parametrize("busy", [True, False])
def test_a_process_that_waits_for_nccl_ends(busy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[int] = []

    def ended(code: int) -> None:
        codes.append(code)
        stuck._busy = None

    monkeypatch.setattr(os, "_exit", ended)
    monkeypatch.setattr(tensor_parallel, "STUCK_SECONDS", 0.0)
    another = threading.get_ident() + 1
    stuck = SimpleNamespace(_busy=another if busy else threading.get_ident())
    TensorParallelExecutor._end_if_stuck(stuck)  # type: ignore[arg-type]
    assert codes == [1] * busy


@pytest.fixture
def engine(by_torch: None) -> Iterator[Engine]:
    engine = made(2)
    yield engine
    executor_of(engine).close()


def test_a_rank_that_is_gone_ends_all(engine: Engine) -> None:
    [process] = executor_of(engine).processes.values()
    engine.add(request("a", tokens=900))
    engine.step()
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(PeerGone, match="rank"):
        go_on(engine)
