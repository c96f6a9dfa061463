"""Which GPU each rank gets, without any GPU."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from support.host_gpus import HostGpus

from nextn.distributed import gpus
from nextn.distributed.group import PeerGone

H100 = SimpleNamespace(name="H100", total_memory=80 << 30)
A100 = SimpleNamespace(name="A100", total_memory=80 << 30)


def machine(monkeypatch: pytest.MonkeyPatch, devices: list[SimpleNamespace], current: int = 0) -> list[int]:
    """With these devices. Returns those that are taken."""
    taken: list[int] = []
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(devices))
    monkeypatch.setattr(torch.cuda, "get_device_properties", devices.__getitem__)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    return taken


@pytest.mark.parametrize(
    ("devices", "current", "ranks", "backend", "want"),
    [
        (4, 0, 4, "nccl", [0, 1, 2, 3]),
        (4, 2, 2, "nccl", [2, 3]),  # of a second replica
        (1, 0, 2, "gloo", [0, 0]),
        (2, 1, 2, "gloo", [1, 0]),  # which would do for NCCL, too, but nobody asks for it
        (3, 0, 4, "gloo", [0, 1, 2, 0]),
    ],
)
def test_who_has_which(
    monkeypatch: pytest.MonkeyPatch, devices: int, current: int, ranks: int, backend: str, want: list[int]
) -> None:
    taken = machine(monkeypatch, [H100] * devices, current)
    shared, listener = gpus.share_gpus(ranks)
    assert listener.getsockname() == (gpus.HOST, shared.port)
    listener.close()
    assert (shared.first, shared.backend) == (current, backend)
    for rank in range(ranks):
        shared.take(rank)
    assert taken == want
    assert gpus.ranks_of_a_gpu(ranks) == max(want.count(device) for device in want)


def test_unequal_ones_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, [H100, H100, A100])
    gpus.share_gpus(2)[1].close()
    with pytest.raises(ValueError, match=r"--tp-size 3: .* A100 \(81920 MiB\), H100 .* CUDA_VISIBLE_DEVICES"):
        gpus.share_gpus(3)


def test_a_process_with_a_group_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, [H100, H100])
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    with pytest.raises(ValueError, match=r"--tp-size 2: this process has a group of torch\.distributed"):
        gpus.share_gpus(2)


@pytest.fixture
def no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "TorchGroup", lambda *args: None)


@pytest.mark.usefixtures("no_group")
def test_what_all_ranks_say() -> None:
    listener = socket.create_server((gpus.HOST, 0))
    shared = HostGpus(listener.getsockname()[1], 0, "gloo")
    kept = []  # rank 0 has what they meet at

    def say(rank: int) -> list[list[int]]:
        between = gpus.BetweenGpus(shared, rank, 3, None if rank else listener, lambda: None)
        kept.append(between)
        return [between.all_say(10**12 + rank), between.all_say(-rank)]

    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(say, range(3))) == [[[10**12, 10**12 + 1, 10**12 + 2], [0, -1, -2]]] * 3


@pytest.mark.usefixtures("no_group")
def test_nobody_waits_for_a_rank_that_is_gone() -> None:
    def check() -> None:
        raise PeerGone("rank 1 has ended")

    with pytest.raises(PeerGone, match="rank 1 has ended"):
        gpus.BetweenGpus(HostGpus(0, 0, "gloo"), 0, 2, socket.create_server((gpus.HOST, 0)), check)
