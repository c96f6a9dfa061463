"""Which steps there are to measure."""

from __future__ import annotations

from pathlib import Path

import torch
from support.checkpoints import gqa_config, random_tensors, write_checkpoint

from nextn.bench.dev.micro.steps import can_draft
from nextn.config import EngineConfig
from nextn.families.config import ModelConfig
from nextn.models.names import expected_tensors


def test_a_model_without_an_mtp_layer_verifies_nothing(tmp_path: Path) -> None:
    config = gqa_config("Glm4MoeForCausalLM")
    cfg = ModelConfig.from_dict(config)
    assert cfg.num_nextn_predict_layers == 1
    folder = write_checkpoint(tmp_path, config, random_tensors(expected_tensors(cfg, 0), dtype=torch.float32))
    path = str(folder)
    assert not can_draft(EngineConfig(model_path=path))  # its files do not have the layer of its config
    assert can_draft(EngineConfig(model_path=path, load_format="dummy"))
    assert can_draft(EngineConfig(model_path=path, speculative_algorithm="NGRAM"))
    assert can_draft(EngineConfig(model_path=path, speculative_draft_model_path="elsewhere"))
    assert can_draft(EngineConfig())
