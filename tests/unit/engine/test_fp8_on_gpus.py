"""What a GPU that converts e4m3 makes of an FP8 checkpoint, on a machine without one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from support.checkpoints import quantize_tensors, random_tensors, tiny_config, write_checkpoint
from support.draft_folders import fp8_config

from nextn.config import EngineConfig
from nextn.engine import model as module
from nextn.families.config import ModelConfig
from nextn.models.names import expected_tensors

if torch.cuda.is_available() or sys.platform != "linux":
    pytest.skip("needs triton's interpreter", allow_module_level=True)


@pytest.mark.parametrize(("capability", "held"), [((9, 0), True), ((8, 9), True), ((8, 6), False)])
def test_matrices_are_held_as_stored_where_e4m3_is_converted(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capability: tuple[int, int],
    held: bool,
) -> None:
    from nextn.ops.triton.ops import TritonOps

    config = fp8_config(tiny_config(), 16)
    tensors = random_tensors(expected_tensors(ModelConfig.from_dict(config), 1))
    write_checkpoint(tmp_path, config, quantize_tensors(tensors, 16))
    bytes_of_a_weight = []
    monkeypatch.setattr(module, "choose_kernels", lambda *_: "triton")
    monkeypatch.setattr(module, "make_ops", lambda *_: TritonOps())
    monkeypatch.setattr(module, "check_memory", lambda *args: bytes_of_a_weight.append(args[3]))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
    caplog.set_level("INFO", "nextn.engine")
    model, kernels = module.make_model(EngineConfig(model_path=str(tmp_path)), torch.device("cpu"), 1)
    assert kernels == "triton"
    in_blocks = {name for name in tensors if "_proj" in name and "eh_proj" not in name}
    assert model.as_stored == ({n for n in in_blocks if "kv_b_proj" not in n} if held else set())
    assert bytes_of_a_weight == [1.0 if held else 2]
    assert f"{4 if held else 0} of 4 layers are held as stored" in caplog.text
