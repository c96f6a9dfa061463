"""Groups that share their experts, with the model for GPUs. Triton's interpreter runs its kernels."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest
import torch
from support.checkpoints import tiny_config
from support.sharing import same, shared_model
from support.thread_world import run_world
from support.torch_worlds import PAGES, Step, placed, run_steps, world_model

from nextn.layers.batch import Span

if torch.cuda.is_available():
    pytest.skip("tests/gpu runs this on the device", allow_module_level=True)
if sys.platform != "linux":
    pytest.skip(f"no triton for {sys.platform}", allow_module_level=True)

from nextn.ops.triton.ops import TritonOps

CONFIG = tiny_config(
    num_hidden_layers=1, first_k_dense_replace=0, n_routed_experts=4, n_group=2, topk_group=1,
    num_experts_per_tok=2,
)  # fmt: skip


class OneAtATime(TritonOps):
    """The interpreter serves one thread."""

    _lock = threading.RLock()

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if not callable(found):
            return found

        def locked(*args: Any, **options: Any) -> Any:
            with OneAtATime._lock:
                return found(*args, **options)

        return locked


def steps_of(group: int) -> list[Step]:
    pages = PAGES[0]
    return [[] if group else [Span([3, 3], 0, pages)], [Span([5] * (2 + group), 0 if group else 2, pages)]]


def test_two_groups() -> None:
    # Not bfloat16, which the interpreter computes wrongly.
    options = {"ops": OneAtATime(), "dtype": torch.float16, "kernels": "triton"}
    alone = shared_model(CONFIG, **options)
    alone.eager = True
    want = [run_steps(alone, steps_of(group)) for group in range(2)]

    def steps(world: Any) -> Any:
        return run_steps(world_model(CONFIG, world, placed(CONFIG, 4, 1), **options), steps_of(world.group))

    for found, expected in zip(run_world(2, 2, 2, steps), want, strict=True):
        same(found, expected)
