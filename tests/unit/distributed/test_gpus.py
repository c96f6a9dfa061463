"""Which GPU each rank gets, without any GPU."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from nextn.distributed import gpus
from nextn.distributed.group import Group
from nextn.distributed.threads import run_ranks

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
    shared = gpus.share_gpus(ranks)
    assert (shared.first, shared.backend) == (current, backend)
    for rank in range(ranks):
        shared.take(rank)
    assert taken == want
    assert gpus.ranks_of_a_gpu(ranks) == max(want.count(device) for device in want)


def test_unequal_ones_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, [H100, H100, A100])
    gpus.share_gpus(2)
    with pytest.raises(
        ValueError, match=r"--tp-size 3: .*: A100 \(81920 MiB\), H100 .* CUDA_VISIBLE_DEVICES"
    ):
        gpus.share_gpus(3)


def test_the_least_of_all_ranks() -> None:
    numbers = [1 << 40, 3, 7]

    def rank(group: Group) -> int:
        return gpus.least(group, numbers[group.rank], torch.device("cpu"))

    assert run_ranks(3, rank) == [3, 3, 3]
