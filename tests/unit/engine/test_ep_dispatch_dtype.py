"""--ep-dispatch-dtype fp8: what refuses it, what it does to a model, and where it is said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from parity.oracle import random_checkpoint
from support.checkpoints import write_checkpoint

from nextn.config import EngineConfig
from nextn.disaggregation.identity import identity_of
from nextn.engine.engine import Engine
from nextn.engine.model import make_model

FP8 = EngineConfig(ep_dispatch_dtype="fp8", threads=1, speculative_num_steps=1, kv_cache_tokens=512)


@pytest.mark.parametrize("model", ["fake:0.5", "dense"])
def test_a_model_without_routed_experts_refuses_it(model: str, tmp_path: Path) -> None:
    if model == "dense":
        write_checkpoint(tmp_path, *random_checkpoint({}, 1, "Qwen3ForCausalLM"))
        model = str(tmp_path)
    with pytest.raises(ValueError, match=r"--ep-dispatch-dtype fp8: .* has no .*experts; leave it out"):
        make_model(replace(FP8, model_path=model, speculative_num_steps=0), torch.device("cpu"), 1)


@pytest.mark.parametrize("kernels", ["auto", "reference"])
def test_every_layers_experts_read_fp8_rows(kernels: str, tmp_path: Path) -> None:
    """The NextN layer's too."""
    write_checkpoint(tmp_path, *random_checkpoint({}, 1))
    options = replace(FP8, model_path=str(tmp_path), kernel_backend=kernels)
    model, found = make_model(options, torch.device("cpu"), 1)
    layers = model.weights.layers if found == "cpu" else [*model.layers, model.nextn[0].layer]
    assert len(layers) == 4
    assert all(layer.mlp.fp8_rows for layer in layers if getattr(layer.mlp, "router", None) is not None)
    assert any(getattr(layer.mlp, "router", None) is not None for layer in layers[3:])


def test_it_is_said_at_the_start_and_to_a_server_that_computes_prompts(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, *random_checkpoint({}, 1))
    fp8, bf16 = (
        Engine(replace(FP8, model_path=str(tmp_path), ep_dispatch_dtype=dtype)) for dtype in ("fp8", "bf16")
    )
    assert fp8.startup["expert_rows"] == "rounded to fp8: texts are others than with bf16"
    assert "expert_rows" not in bf16.startup
    (said,) = identity_of(fp8).differences(identity_of(bf16))
    assert "as stored, rows of experts in fp8 on the decode server and" in said
