"""Which GPU each rank gets, and how ranks meet, without any GPU."""

from __future__ import annotations

import os
import socket
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from support.host_gpus import HostGpu

from nextn.config import EngineConfig
from nextn.distributed import between_gpus, gpus
from nextn.distributed.between_gpus import BetweenGpus
from nextn.distributed.gpus import Agreed, Gpu, Gpus, agreed
from nextn.distributed.group import PeerGone
from nextn.distributed.interfaces import interface_of
from nextn.engine.gpu_ranks import HOST, own_gpu, share_gpus
from nextn.parallel_config import TORCHRUN


def machine(
    monkeypatch: pytest.MonkeyPatch, devices: int, current: int = 0, other: int | None = None
) -> list[int]:
    """other: a device of another kind. Returns those that are taken."""
    taken: list[int] = []
    named = [
        SimpleNamespace(
            name="A100" if i == other else "H100", total_memory=80 << 30, major=9, minor=0, uuid=f"GPU-{i}"
        )
        for i in range(devices)
    ]
    monkeypatch.setattr(os, "environ", {})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    monkeypatch.setattr(torch.cuda, "get_device_properties", named.__getitem__)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    return taken


@pytest.mark.parametrize(
    ("devices", "current", "ranks", "backend", "want"),
    [
        (4, 0, 4, "nccl", [0, 1, 2, 3]),
        (4, 2, 2, "nccl", [2, 3]),  # of a second replica
        (2, 1, 2, "nccl", [1, 0]),
        (1, 0, 2, "gloo", [0, 0]),
        (3, 0, 4, "gloo", [0, 1, 2, 0]),
    ],
)
def test_who_has_which(
    monkeypatch: pytest.MonkeyPatch, devices: int, current: int, ranks: int, backend: str, want: list[int]
) -> None:
    taken = machine(monkeypatch, devices, current)
    shared, listener = share_gpus(EngineConfig(tp_size=ranks))
    assert shared is not None
    assert listener is not None
    assert listener.getsockname() == (HOST, shared[0].port)
    listener.close()
    for each in shared:
        each.take()
    assert taken == want
    assert {each.backend for each in shared} == {backend}
    assert [each.sharing for each in shared] == [want.count(device) for device in want]
    assert gpus.ranks_of_a_gpu(ranks) == max(each.sharing for each in shared)
    assert os.environ["NCCL_SOCKET_IFNAME"] == os.environ["GLOO_SOCKET_IFNAME"] == "lo"


def test_on_several_machines_a_rank_takes_one_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, 2)
    config = EngineConfig(tp_size=4, nnodes=2, node_rank=1, dist_init_addr="a:1")
    assert [found and found.device for found in (own_gpu(config, 2), own_gpu(config, 3))] == [0, 1]


def test_torchrun_says_which_rank_of_its_machine_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where each sees one GPU only, that one."""
    config = EngineConfig(tp_size=4, nnodes=4, node_rank=3, dist_init_addr="a:1")
    for devices, want in ((2, 1), (1, 0)):
        machine(monkeypatch, devices)
        monkeypatch.setattr(os, "environ", {TORCHRUN: "none", "LOCAL_RANK": "1"})
        assert own_gpu(config, 3) == Gpu(want, "H100 (81920 MiB, capability 9.0)", f"GPU-{want}")


def test_unequal_ones_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, 3, other=2)
    listener = share_gpus(EngineConfig(tp_size=2))[1]
    assert listener is not None
    listener.close()
    said = r"--tp-size 3: .*: GPU 0, GPU 1: H100 .*; GPU 2: A100 \(81920 MiB, .* CUDA_VISIBLE_DEVICES"
    with pytest.raises(ValueError, match=said):
        share_gpus(EngineConfig(tp_size=3))


def test_a_machine_without_any_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, 1)

    def broken() -> int:
        raise RuntimeError("CUDA error: busy\nand a trace")

    monkeypatch.setattr(torch.cuda, "current_device", broken)
    found = [Gpu(0, "H100", "GPU-a"), gpus.gpu_at(0)]
    with pytest.raises(ValueError, match="needs a CUDA device for every rank: a: H100; b: CUDA error: busy"):
        agreed(found, ["a", "b"])


def test_two_machines_count_their_gpus_alike() -> None:
    """One with fewer GPUs than ranks decides for all."""
    found = [Gpu(device, "H100", uuid) for device, uuid in ((0, "a"), (1, "b"), (0, "c"), (0, "c"))]
    assert agreed(found, ["node 0"] * 2 + ["node 1"] * 2) == Agreed("gloo", [1, 1, 2, 2])
    assert agreed(found[:3], ["node 0"] * 2 + ["node 1"]) == Agreed("nccl", [1, 1, 1])


def test_another_one_is_made_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = machine(monkeypatch, 3, current=1)
    gpus.make_current("GPU-0")
    assert taken == [0]
    with pytest.raises(ValueError, match="GPU-7, which this process cannot see; unset CUDA_VISIBLE_DEVICES"):
        gpus.make_current("GPU-7")


def test_a_process_with_a_group_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    with pytest.raises(ValueError, match=r"--tp-size 2: this process already has a torch\.distributed"):
        agreed([Gpu(0, "H100", "a"), Gpu(1, "H100", "b")], ["a", "b"])


def test_between_machines_the_network_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gloo takes that of --dist-init-addr."""
    monkeypatch.setattr(gpus, "interface_of", {"10.0.0.2": "eth1"}.get)
    found = Gpus(HostGpu(0, "H100", "a"), "nccl", 1, "10.0.0.1", 5000, "10.0.0.2")
    assert found.interfaces() == {"GLOO_SOCKET_IFNAME": "eth1"}
    assert found._replace(address="10.0.0.3").interfaces() == {}
    assert found._replace(host="::1").interfaces()["NCCL_SOCKET_IFNAME"] == "lo"
    monkeypatch.setattr(os, "environ", {"GLOO_SOCKET_IFNAME": "mine", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"})
    found.take()
    assert os.environ == {"GLOO_SOCKET_IFNAME": "mine", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}


@pytest.mark.skipif(not os.path.exists("/sys/class/net/lo"), reason="Linux only")
def test_the_interface_of_an_address() -> None:
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("::1") in ("lo", None)  # where there is no IPv6
    assert interface_of("192.0.2.77") is None


def met(port: int) -> Gpus:
    return Gpus(HostGpu(0, "H100", "a"), "gloo", 1, HOST, port, HOST)


@pytest.fixture
def no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(between_gpus, "TorchGroup", lambda *args: None)


@pytest.mark.usefixtures("no_group")
def test_what_all_ranks_say() -> None:
    listener = socket.create_server((HOST, 0))
    gpus = met(listener.getsockname()[1])
    kept = []  # rank 0 has what they meet at

    def say(rank: int) -> list[list[int]]:
        between = BetweenGpus(gpus, rank, 3, None if rank else listener, lambda: None)
        kept.append(between)
        return [between.all_say(10**12 + rank), between.all_say(-rank)]

    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(say, range(3))) == [[[10**12, 10**12 + 1, 10**12 + 2], [0, -1, -2]]] * 3


@pytest.mark.usefixtures("no_group")
def test_nobody_waits_for_a_rank_that_is_gone() -> None:
    def check() -> None:
        raise PeerGone("rank 1 has ended")

    with pytest.raises(PeerGone, match="rank 1 has ended"):
        BetweenGpus(met(0), 0, 2, socket.create_server((HOST, 0)), check)
