"""The script that writes GGUF files: its blocks mean the weights, and its command."""

from __future__ import annotations

import json

import gguf
import numpy as np
import pytest
from support.gguf_models import gguf_checkpoint, random_folder

SCRIPT = gguf_checkpoint()


@pytest.mark.parametrize(("kind", "error"), [("q4_k", 0.09), ("q6_k", 0.03), ("q8_0", 0.01), ("q4_0", 0.11)])
def test_blocks_mean_the_weights(kind, error):
    """As the gguf package reads them, which has no K types to write; zeros and lone signs too."""
    weight = np.random.default_rng(1).normal(size=(6, 512)).astype(np.float32)
    weight[1] = 0
    weight[2] = np.abs(weight[2])
    weight[3] *= 1e-3
    weight[4, 256:] = 0
    data = SCRIPT.quantized(weight, SCRIPT.TYPES[kind])
    back = gguf.quants.dequantize(data, SCRIPT.TYPES[kind])
    for row, want in zip(back, weight, strict=True):
        size = np.sqrt(np.square(want).mean())
        assert np.sqrt(np.square(row - want).mean()) <= error * size


def test_the_command(tmp_path, capsys):
    folder, _, _ = random_folder(tmp_path / "model", {"vocab_size": 300})
    out = tmp_path / "model.gguf"
    assert SCRIPT.main([str(folder), str(out), "--type", "bf16", "--without-nextn"]) == 0
    done = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert done["files"] == [str(out)]
    assert done["bytes"] == out.stat().st_size
    assert 16 < done["bits_per_weight"] < 40
    reader = gguf.GGUFReader(out)
    assert "deepseek2.nextn_predict_layers" not in reader.fields
    assert not any("nextn" in t.name for t in reader.tensors)
    with pytest.raises(SystemExit):
        SCRIPT.main([str(folder), str(out)])
    assert "model.gguf exists" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        SCRIPT.main([str(tmp_path / "none"), str(tmp_path / "x.gguf")])
    assert "there is no such folder" in capsys.readouterr().err


def test_rows_that_are_no_whole_blocks():
    import torch

    kinds = [SCRIPT.type_of("blk.0.ffn_up.weight", torch.zeros(4, k), SCRIPT.TYPES["q4_k"]).name
             for k in (512, 96, 40)]  # fmt: skip
    assert kinds == ["Q4_K", "Q8_0", "BF16"]
    assert (
        SCRIPT.type_of("blk.0.ffn_gate_inp.weight", torch.zeros(4, 512), SCRIPT.TYPES["q4_k"]).name == "F32"
    )
    assert SCRIPT.type_of("blk.0.attn_norm.weight", torch.zeros(512), SCRIPT.TYPES["q4_k"]).name == "F32"


def test_a_tokenizer_without_a_name_in_gguf(tmp_path):
    folder, _, _ = random_folder(tmp_path / "model", {"vocab_size": 300})
    whole = json.loads((folder / "tokenizer.json").read_text())
    whole["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": "e"}, "behavior": "Isolated", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": False},
    ]}  # fmt: skip
    with pytest.raises(ValueError, match="GGUF has no name for the pre-tokenizer"):
        SCRIPT.pre_tokenizer(whole)
