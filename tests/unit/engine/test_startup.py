"""What the start-up table says of the kernels' arithmetic."""

from __future__ import annotations

from parity.oracle import random_checkpoint
from support.native_kernels import built_levels
from support.native_model import native_model

from nextn.engine.startup import arithmetic
from nextn.ops.cpu.interface import BF16


def test_formats_that_are_not_multiplied_in_the_levels_own_way_are_named() -> None:
    built_levels()  # skips where there are no kernels
    config, tensors = random_checkpoint({}, seed=3)
    chosen = native_model(config, tensors, way=lambda kind: 3 if kind == BF16 else 0)
    assert arithmetic(chosen.weights.ways) == "bf16 weights by f32 multiply-adds"
    assert native_model(config, tensors).weights.ways == {}
