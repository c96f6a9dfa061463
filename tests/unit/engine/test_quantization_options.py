"""--quantization w4a16: what goes with it, and what it says of weights that it cannot convert."""

import logging
import re

import pytest
import torch
from parity.oracle import random_checkpoint
from support.checkpoints import write_checkpoint

from nextn.config import EngineConfig
from nextn.engine.model import make_model
from nextn.ops.cpu.interface import BF16, INT4Z, INT8
from nextn.ops.cpu.library import NoLibrary, library


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"quantization_group_size": 32}, "--quantization-group-size is 32: it is for --quantization w4a16"),
        (
            {"quantization_group_size": 64, "quantization": "w8a16"},
            "and --quantization is w8a16; leave it out",
        ),
        ({"quantization_group_size": 48, "quantization": "w4a16"}, "is 48: choose from 32, 64, 128"),
        ({"quantization": "w3a16"}, "--quantization is 'w3a16': choose from w8a16, w4a16"),
    ],
)
def test_what_does_not_go_together(options, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        EngineConfig(**options).check()


def test_what_is_made_of_the_weights(tmp_path, caplog):
    """The layers' matrices are in 4 bits, or in int8 where inputs are no whole groups; the NextN layer is in
    int8, the head in bf16."""
    try:
        library()
    except NoLibrary as e:
        pytest.skip(f"no native kernels: {e}")
    config, tensors = random_checkpoint({"hidden_size": 64, "intermediate_size": 80}, seed=1)
    write_checkpoint(tmp_path, config, tensors)
    options = EngineConfig(model_path=str(tmp_path), quantization="w4a16", speculative_num_steps=1)
    with caplog.at_level(logging.INFO):
        model, kernels = make_model(options, torch.device("cpu"), 1)
    assert kernels == "cpu"
    w = model.weights
    dense, nextn = w.layers[0], w.layers[3]
    assert (dense.down.kind, dense.down.block) == (INT4Z, 32)
    assert dense.mlp.shared_gate_up.kind == INT4Z
    assert dense.mlp.shared_down.kind == INT8  # of 80 inputs
    assert {nextn.down.kind, nextn.mlp.gate_up.kind} == {INT8}
    assert w.head.kind == BF16
    assert (
        "matrices are in int8, for their inputs are not groups of 32: model.layers.0.self_attn" in caplog.text
    )
    said = [name for name in tensors if name in w.int8_fallbacks]
    assert "model.layers.0.mlp.down_proj.weight" in said
    assert all(tensors[name].shape[1] % 32 for name in said)
