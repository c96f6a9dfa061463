"""What the machine has, and what an engine will take of it."""

from __future__ import annotations

import os
import resource

import pytest
import torch
from support.checkpoints import tiny_config

from nextn.config import EngineConfig
from nextn.engine import memory
from nextn.families.config import ModelConfig
from nextn.families.files import CheckpointError
from nextn.models.names import size_of

CPU = torch.device("cpu")
CFG = ModelConfig.from_dict(tiny_config(max_position_embeddings=100_000))


def test_a_container_s_limit_counts(tmp_path, monkeypatch):
    files = tmp_path / "none", tmp_path / "memory.max", tmp_path / "limit_in_bytes"
    monkeypatch.setattr(memory, "CGROUP_LIMITS", tuple(map(str, files)))
    files[1].write_text("max\n")
    whole = memory.device_memory(CPU)
    assert whole <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") + memory._swap()
    files[2].write_text("123456789\n")
    assert memory.device_memory(CPU) == 123456789
    assert memory.device_memory(CPU, ranks=3) == 41152263  # the container's limit is for all
    monkeypatch.setattr(resource, "getrlimit", lambda which: (100_000_000, -1))
    assert memory.device_memory(CPU) == 100_000_000
    assert memory.device_memory(CPU, ranks=3) == 41152263  # and this is of one process


@pytest.mark.parametrize(
    ("options", "longest"),
    [
        ({}, 32768 + 17),
        ({"kv_cache_tokens": 1000}, 1000 + 17),
        ({"kv_cache_tokens": 1000, "context_length": 50}, 50 + 17),
        ({"kv_cache_tokens": 10**9}, 100_000),
        ({"kv_cache_tokens": 10**9, "context_length": 100_000}, 100_000),
    ],
)
def test_tables_for_the_positions_that_there_can_be(options, longest):
    assert memory.bounded_context(EngineConfig(**options), CFG, CPU).max_position_embeddings == longest


def test_what_asks_for_most_is_named(monkeypatch):
    monkeypatch.setattr(memory, "device_memory", lambda device, ranks: 10 << 20)

    def said(cfg, **options):
        with pytest.raises(ValueError) as caught:
            memory.check_memory(EngineConfig(**options), cfg, 1, 2, CPU)
        return type(caught.value), str(caught.value)

    memory.check_memory(EngineConfig(), CFG, 1, 2, CPU)
    wide = ModelConfig.from_dict(tiny_config(intermediate_size=10**6))
    assert said(CFG, kv_cache_tokens=10**6)[1].startswith(
        "--kv-cache-tokens is 1000000: the engine would take"
    )
    kind, message = said(wide, model_path="/models/wide")
    assert kind is CheckpointError
    assert message.startswith("/models/wide: the engine would take 0.2 GiB or more, and this machine")
    message = said(wide, model_path="/models/wide", load_format="dummy")[1]
    assert message.startswith("/models/wide/config.json: intermediate_size is 1000000: the engine would take")


def test_of_ranks_each_has_its_part_of_the_weights_and_a_whole_pool(monkeypatch):
    wide = ModelConfig.from_dict(tiny_config(intermediate_size=50_000))

    def fits(tokens, ranks, have):
        monkeypatch.setattr(memory, "device_memory", lambda device, ranks: have)
        memory.check_memory(EngineConfig(kv_cache_tokens=tokens, tp_size=ranks), wide, 1, 2, CPU)

    _, values = size_of(wide, 1)
    with pytest.raises(CheckpointError, match="the engine would take"):
        fits(16, 1, have=int(1.5 * values))
    fits(16, 2, have=int(1.5 * values))
    with pytest.raises(ValueError, match=r"--kv-cache-tokens is 1000000: each of the 2 ranks would"):
        fits(10**6, 2, have=int(1.5 * values))


def test_ranks_of_other_machines_take_nothing_of_this_one(monkeypatch):
    asked = []
    monkeypatch.setattr(memory, "device_memory", lambda device, ranks: asked.append(ranks) or 1 << 40)
    memory.check_memory(EngineConfig(tp_size=4, nnodes=2, dist_init_addr="a:1"), CFG, 1, 2, CPU)
    assert asked == [2]
