"""What an engine gets where the machine has little to give or to tell."""

import os

import pytest
import torch

from nextn.config import EngineConfig, usable_cores
from nextn.engine import build


def test_cores_where_the_system_does_not_say(monkeypatch):
    assert usable_cores() == len(os.sched_getaffinity(0))
    monkeypatch.delattr(os, "sched_getaffinity")  # macOS has none
    assert usable_cores() == os.cpu_count()


def test_a_gpu_without_room_for_a_page_is_an_error(monkeypatch):
    for free in (0, 999, 15_000):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (free, 80 << 30))
        with pytest.raises(ValueError, match=r"less than one page of 16; raise --kv-cache-tokens"):
            build._pages(EngineConfig(), 1000, torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1_000_000, 80 << 30))
    assert build._pages(EngineConfig(), 1000, torch.device("cuda")) == 850 // 16
    assert build._pages(EngineConfig(), 1000, torch.device("cpu")) == 32768 // 16
