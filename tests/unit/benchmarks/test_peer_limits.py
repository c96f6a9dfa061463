"""What a token must read, and what the bandwidth of reading makes of it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from nextn.bench.dev.micro.step_work import Step, step_work
from nextn.config import EMBEDDED, model_folder
from nextn.families.config import ModelConfig

pytestmark = pytest.mark.usefixtures("peers")


def facts(head: bool = True) -> dict[str, Any]:
    """Two layers and a NextN layer; 2 of 8 experts."""
    tensors: list[tuple[str, str, int]] = [
        ("token_embd.weight", "Q4_K", 50),
        ("output_norm.weight", "F32", 32),
        ("blk.0.attn_output.weight", "Q4_K", 40),
        ("blk.1.ffn_gate_exps.weight", "Q4_K", 160),
        ("blk.1.ffn_gate_shexp.weight", "Q4_K", 20),
        ("blk.2.attn_output.weight", "Q8_0", 70),
        ("blk.2.nextn.eh_proj.weight", "Q8_0", 140),
    ]
    if head:
        tensors.append(("output.weight", "Q6_K", 60))
    return {"layers": 3, "nextn_layers": 1, "experts": 8, "experts_used": 2, "tensors": tensors}


def test_a_token_reads_neither_embeddings_nor_drafters_nor_idle_experts() -> None:
    from limits import gguf_bytes

    assert gguf_bytes(facts()) == 32 + 40 + 160 * 2 // 8 + 20 + 60


def test_formats_of_a_file() -> None:
    from limits import gguf_formats

    assert list(gguf_formats(facts()).items()) == [("Q4_K", 270), ("Q8_0", 210), ("Q6_K", 60), ("F32", 32)]


def test_an_embedding_that_is_the_head_is_read() -> None:
    from limits import gguf_bytes

    assert gguf_bytes(facts(head=False)) == 32 + 40 + 160 * 2 // 8 + 20 + 50


def test_a_file_without_experts() -> None:
    from limits import gguf_bytes

    dense = facts()
    dense["experts"] = dense["experts_used"] = 0
    dense["tensors"] = [t for t in dense["tensors"] if "_exps" not in t[0]]
    assert gguf_bytes(dense) == 32 + 40 + 20 + 60


def test_a_folder_counts_as_a_step_of_one_row_does() -> None:
    from limits import folder_bytes

    cfg = ModelConfig.from_folder(model_folder(EMBEDDED))
    experts = (cfg.num_hidden_layers - cfg.first_k_dense_replace) * cfg.num_experts_per_tok
    step = step_work(cfg, Step(rows=1, end=0, chosen=1, experts=experts), size=4)
    row = 4 * cfg.hidden_size  # of the embedding, which the benchmark leaves out
    assert folder_bytes(cfg) == {
        "float32": pytest.approx(step.bytes - row, rel=1e-6),
        "bfloat16": pytest.approx((step.bytes - row) / 2, rel=1e-6),
    }


def test_limits() -> None:
    from limits import limits

    assert limits(50e9, {"gguf": 500_000_000}) == {
        "read_gb_s": 50.0, "bytes_per_token": {"gguf": 500_000_000}, "tok_s": {"gguf": 100.0},
    }  # fmt: skip


GGUF_PY = """
class GGUFReader:
    def __init__(self, file):
        with open(file) as opened:
            magic, _, count = opened.read().partition(" ")
        if magic != "GGUF":
            raise ValueError("GGUF magic invalid")
        self.fields = {key: Field(value) for key, value in {
            "GGUF.version": 3, "general.architecture": "deepseek2", "tokenizer.ggml.tokens": list("abcde"),
            "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2,
            "tokenizer.ggml.eot_token_id": 4, "deepseek2.context_length": 4096, "deepseek2.block_count": 3,
            "deepseek2.nextn_predict_layers": 1, "deepseek2.expert_count": 8,
            "deepseek2.expert_used_count": 2, "split.count": int(count or 1),
        }.items()}
        self.tensors = [Tensor()]

class Field:
    def __init__(self, value):
        self.value = value
        self.data = value if isinstance(value, list) else [0]
    def contents(self):
        return self.value

class Kind:
    name = "Q4_K"

class Tensor:
    name, tensor_type, shape, n_bytes = "output.weight", Kind, (256, 5), 720
"""


def test_what_a_file_holds_is_told_by_llama_cpps_package(tmp_path: Path) -> None:
    from limits import gguf_facts

    package = tmp_path / "gguf-py" / "gguf.py"
    package.parent.mkdir()
    package.write_text(GGUF_PY)
    file = tmp_path / "model.gguf"
    file.write_text("GGUF")
    found = gguf_facts(Path(sys.executable), tmp_path, file)
    assert found["tensors"] == [["output.weight", "Q4_K", 720]]
    assert (found["vocab_size"], found["bos"], found["ends"]) == (5, 1, [2, 4])
    assert (found["context"], found["layers"], found["nextn_layers"]) == (4096, 3, 1)
    assert (found["experts"], found["experts_used"]) == (8, 2)
    for n in (1, 2):
        (tmp_path / f"model-0000{n}-of-00002.gguf").write_text("GGUF 2")
    found = gguf_facts(Path(sys.executable), tmp_path, tmp_path / "model-00001-of-00002.gguf")
    assert len(found["tensors"]) == 2
    with pytest.raises(ValueError, match=r"it is one of 2 parts; name the first"):
        gguf_facts(Path(sys.executable), tmp_path, tmp_path / "model-00002-of-00002.gguf")
    file.write_text("PK")
    with pytest.raises(ValueError, match=r"model.gguf cannot be measured: ValueError: GGUF magic invalid"):
        gguf_facts(Path(sys.executable), tmp_path, file)
