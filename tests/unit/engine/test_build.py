"""What an engine is built of: where the machine has little to give or to tell, and several NextN layers."""

import os

import pytest
import torch
from support.checkpoints import random_tensors, tiny_config, write_checkpoint

from nextn.config import EngineConfig, usable_cores
from nextn.engine import build, rank
from nextn.families.config import ModelConfig
from nextn.models.export import export_mtp
from nextn.models.names import expected_tensors


def test_cores_where_the_system_does_not_say(monkeypatch):
    assert usable_cores() == len(os.sched_getaffinity(0))
    monkeypatch.delattr(os, "sched_getaffinity")  # macOS has none
    assert usable_cores() == os.cpu_count()


def test_a_gpu_without_room_for_a_page_is_an_error(monkeypatch):
    for free in (0, 999, 15_000):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (free, 80 << 30))
        with pytest.raises(ValueError, match=r"less than one page of 16; raise --kv-cache-tokens"):
            rank._pages(EngineConfig(), 1000, torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1_000_000, 80 << 30))
    assert rank._pages(EngineConfig(), 1000, torch.device("cuda")) == 850 // 16
    assert rank._pages(EngineConfig(), 1000, torch.device("cuda"), graphs=200_000) == 680 // 16
    assert rank._pages(EngineConfig(), 1000, torch.device("cpu")) == 32768 // 16


def test_as_many_nextn_layers_as_there_are_drafts(tmp_path):
    """Each with a share of the pool; those that no depth would use are not loaded."""
    config = tiny_config(num_nextn_predict_layers=3)
    folder = write_checkpoint(
        tmp_path / "own", config, random_tensors(expected_tensors(ModelConfig.from_dict(config), 3))
    )
    export_mtp(folder, tmp_path / "exported")
    options = {"model_path": str(folder), "kv_cache_tokens": 320, "kernel_backend": "reference", "threads": 1}
    for drafts, layers in ((0, 0), (1, 1), (2, 2), (3, 3), (5, 3)):
        own = build.build(EngineConfig(**options, speculative_num_steps=drafts))
        assert own.executor.model.nextn_layers == layers
        assert own.startup["kv_bytes_draft"] * 3 == own.startup["kv_bytes_target"] * layers
        assert own.startup.get("draft_layers", 1) == max(1, layers)
        if layers:
            path = str(tmp_path / "exported")
            other = build.build(
                EngineConfig(**options, speculative_num_steps=drafts, speculative_draft_model_path=path)
            )
            ours, theirs = own.executor.model.targets(), other.executor.model.targets()
            assert ours.keys() == theirs.keys()
            assert all(torch.equal(ours[name], theirs[name]) for name in ours)
