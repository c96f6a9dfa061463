"""Ranks that share a model have the bits of one device: hidden states, logits, drafts and the KV cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.checkpoints import gqa_config, quantize_tensors, random_tensors, tiny_config, write_checkpoint
from support.draft_folders import fp8_config, with_copies, write_sglang
from support.packed import awq, awq_config, coded
from support.sharing import CONFIG, ExactReference, all_steps, same, shared_model
from support.thread_ranks import run_ranks
from torch import Tensor

from nextn.config import model_folder
from nextn.distributed.group import Alone, Group
from nextn.families.config import ModelConfig
from nextn.models.draft_folder import DraftFolder
from nextn.models.dummy import dummy_checkpoint
from nextn.models.loader import load_checkpoint
from nextn.models.names import expected_tensors, nextn_tensors, product_shapes, shared_tensors
from nextn.models.torch_model import TorchModel
from nextn.ops.registry import make_ops

F32, BF16 = torch.float32, torch.bfloat16
CPU = torch.device("cpu")


def heads(count: int) -> dict[str, Any]:
    return {"num_attention_heads": count, "num_key_value_heads": count}


def compare(
    size: int, config: dict[str, Any], ops: Any, dtype: torch.dtype, count: int = 4, **options: Any
) -> list[int]:
    """Bytes of each rank's weights, after those of one device. count: of steps, see `all_steps`."""
    alone = shared_model(config, ops=ops, dtype=dtype, **options)
    want = all_steps(alone, count=count)

    def steps(group: Group) -> tuple[list[Tensor], int]:
        model = shared_model(config, group, ops, dtype, **options)
        return all_steps(model, count=count), model.weight_bytes

    ranks = run_ranks(size, steps)
    for found, _ in ranks:
        same(found, want)
    return [alone.weight_bytes, *(held for _, held in ranks)]


def test_experts_that_read_fp8_rows() -> None:
    """Each rank rounds the rows for its part of every expert."""
    config = tiny_config(hidden_size=136, **heads(4))
    compare(2, config, ExactReference(), BF16, fp8_rows=True)
    ops = ExactReference()
    found, plain = (all_steps(shared_model(config, ops=ops, fp8_rows=on)) for on in (True, False))
    assert not any(torch.equal(a, b) for a, b in zip(found, plain, strict=True))


@pytest.mark.parametrize(("size", "changes"), [(4, {}), (2, {"q_lora_rank": None})], ids=str)
def test_plain_torch(size: int, changes: dict[str, Any]) -> None:
    """On this machine's BLAS: what it computes otherwise in parts is not split. In bf16, in which
    many take long: test_grouped_queries_on_this_machines_blas."""
    tokens = [7, 300, 1, 511, 40]
    alone, *ranks = compare(size, {**CONFIG, **changes}, "reference", F32, count=3, draft_tokens=tokens)
    assert all(held <= alone for held in ranks)


def test_long_prompts_in_the_naive_form() -> None:
    """Which makes no promise to the bit: how it is cut into pieces follows from the number of heads."""

    def steps(group: Group) -> list[Tensor]:
        model = shared_model(CONFIG, group)
        model.naive_prompts = True
        return all_steps(model, count=2)

    want = steps(Alone())
    for found in run_ranks(2, steps):
        for a, b in zip(found, want, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_the_embedded_model() -> None:
    folder = model_folder("nextn-tiny")
    cfg = ModelConfig.from_folder(folder)
    ops = make_ops(product_shapes(cfg), F32, CPU)

    def steps(group: Group) -> list[Tensor]:
        model = TorchModel(cfg, ops, F32, CPU, 1, group=group)
        load_checkpoint(
            folder, expected_tensors(cfg, 1), model.place,
            shared=shared_tensors(cfg, 1), rows=model.rows(),
        )  # fmt: skip
        return all_steps(model, count=2)

    want = steps(Alone())
    for found in run_ranks(2, steps):
        same(found, want)


@pytest.mark.parametrize(
    ("size", "changes", "dtype"),
    [
        (2, {}, BF16),
        (3, {**heads(3), "q_lora_rank": None}, F32),
        (4, {**heads(4), "n_shared_experts": 0, "tie_word_embeddings": True}, BF16),
        (2, {"n_routed_experts": 0, "num_nextn_predict_layers": 2}, F32),
    ],
    ids=str,
)
def test_all_parts(size: int, changes: dict[str, Any], dtype: torch.dtype) -> None:
    """Every product split, and unevenly, down to a few columns."""
    config = tiny_config(num_hidden_layers=2, **changes)
    alone, *ranks = compare(size, config, ExactReference(), dtype, draft_tokens=[3, 40, 0, 47, 8])
    assert all(held < alone for held in ranks)


@pytest.mark.parametrize(
    ("size", "architecture", "changes", "dtype"),
    [
        (2, "Glm4MoeForCausalLM", {}, BF16),  # a key-value head each
        (4, "MiMoForCausalLM", {"num_attention_heads": 8}, F32),  # two ranks for a key-value head
        (3, "LlamaForCausalLM", {"num_key_value_heads": 6, "attention_bias": True}, BF16),
        (3, "Qwen3ForCausalLM", {"num_key_value_heads": 1}, F32),
    ],
    ids=str,
)
def test_grouped_query_attention(
    size: int, architecture: str, changes: dict[str, Any], dtype: torch.dtype
) -> None:
    config = gqa_config(architecture, num_hidden_layers=2, num_nextn_predict_layers=1, **changes)
    alone, *ranks = compare(size, config, ExactReference(), dtype)
    assert all(held < alone for held in ranks)


def test_grouped_queries_on_this_machines_blas() -> None:
    config = gqa_config("Glm4MoeForCausalLM", hidden_size=256, intermediate_size=384, head_dim=32)
    compare(2, {**config, "num_hidden_layers": 2, "moe_intermediate_size": 64}, "reference", BF16, 2)


def test_ranks_that_would_cut_key_value_heads_apart() -> None:
    with pytest.raises(ValueError, match=r"6 attention heads and 2 key-value .* --tp-size can be 1, 2, 6$"):
        run_ranks(3, lambda group: shared_model(gqa_config("LlamaForCausalLM"), group, ExactReference()))


@settings(max_examples=4, derandomize=True)
@given(data=st.data())
def test_any_sizes(data: st.DataObject) -> None:
    size, draw = data.draw(st.integers(2, 4)), data.draw
    count = size * draw(st.integers(1, 2))
    vocab = draw(st.integers(4, 150))
    config = tiny_config(
        num_hidden_layers=2, **heads(count), vocab_size=vocab,
        hidden_size=draw(st.integers(4, 150)), intermediate_size=draw(st.integers(4, 150)),
        moe_intermediate_size=draw(st.integers(4, 70)), n_shared_experts=draw(st.integers(0, 2)),
        q_lora_rank=draw(st.sampled_from([None, 5, 12])), v_head_dim=draw(st.integers(1, 9)),
        tie_word_embeddings=draw(st.booleans()),
    )  # fmt: skip
    tokens = draw(st.none() | st.lists(st.integers(0, vocab - 1), min_size=1, max_size=9, unique=True))
    compare(size, config, ExactReference(), draw(st.sampled_from([F32, BF16])), draft_tokens=tokens)


def parts(config: dict[str, Any], size: int) -> list[tuple[dict[str, Tensor], dict[str, range]]]:
    """targets() and rows() of every rank's model."""

    def made(group: Group) -> tuple[dict[str, Tensor], dict[str, range]]:
        model = shared_model(config, group, ExactReference())
        for target in model.targets().values():
            target.fill_(torch.nan)
        return model.targets(), model.rows()

    return run_ranks(size, made)


def hold(targets: dict[str, Tensor], rows: dict[str, range], whole: dict[str, Tensor]) -> None:
    """The targets are the rows of the whole tensors."""
    assert targets.keys() == whole.keys()
    for name, tensor in whole.items():
        own = rows.get(name, range(len(tensor)))
        assert torch.equal(targets[name], tensor[own.start : own.stop]), name


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_rank_reads_its_rows_only(tmp_path: Path, size: int) -> None:
    """FP8 blocks of 16, of which rows begin and end within."""
    config = fp8_config(tiny_config(**heads(6)), 16)
    cfg = ModelConfig.from_dict(config)
    expected = expected_tensors(cfg, 1)
    stored = quantize_tensors(random_tensors(expected, seed=5), block=16)
    write_checkpoint(tmp_path, config, stored, shards=3)

    def load(targets: dict[str, Tensor], **options: Any) -> int:
        def place(name: str, tensor: Tensor) -> None:
            targets[name].copy_(tensor)

        report = load_checkpoint(
            tmp_path, expected, place, quantization=cfg.quantization, dtype=F32,
            shared=shared_tensors(cfg, 1), **options,
        )  # fmt: skip
        return report.bytes

    whole = {name: torch.empty(shape) for name, shape in expected.items()}
    everything = load(whole)
    for targets, rows in parts(config, size):
        read = load(targets, rows=rows)
        hold(targets, rows, whole)
        assert read == everything if size == 1 else read < 0.8 * everything
    if size > 1:
        assert any(r.start % 16 for r in rows.values())
        fp8 = [name for name in rows if name + "_scale_inv" in stored]
        blocks: dict[str, Tensor] = {}

        def place(name: str, tensor: Tensor, scale: Tensor | None = None) -> None:
            columns = tensor.shape[-1]
            if scale is not None:
                blocks[name] = tensor.float() * scale.repeat_interleave(16, 1)[:, :columns]

        load_checkpoint(
            tmp_path, expected, place, quantization=cfg.quantization, shared=shared_tensors(cfg, 1),
            as_stored=fp8, rows=rows,
        )  # fmt: skip
        hold(blocks, rows, {name: whole[name] for name in fp8})


def test_rows_of_a_draft_folder(tmp_path: Path) -> None:
    config = tiny_config()
    cfg = ModelConfig.from_dict(config)
    tensors = with_copies(config, random_tensors(expected_tensors(cfg, 1), seed=6))
    draft = DraftFolder.open(write_sglang(tmp_path / "draft", config, tensors), cfg)
    for targets, rows in parts(config, 2):
        module = {name: targets[name] for name in nextn_tensors(cfg, 1)}
        draft.load(cfg, 1, lambda name, tensor, to=module: to[name].copy_(tensor), F32, rows=rows)
        hold(module, rows, {name: tensors[name].float() for name in module})


def test_dummy_weights_are_parts_of_the_whole() -> None:
    cfg = ModelConfig.from_dict(tiny_config())
    expected = expected_tensors(cfg, 1)
    whole: dict[str, Tensor] = {}
    dummy_checkpoint(cfg.names, expected, whole.__setitem__, 3, F32)
    for targets, rows in parts(tiny_config(), 2):
        dummy_checkpoint(
            cfg.names, expected, lambda name, t, to=targets: to[name].copy_(t), 3, F32, rows=rows
        )
        hold(targets, rows, whole)


@pytest.mark.parametrize("size", [2, 3])
def test_rows_of_packed_matrices(tmp_path: Path, size: int) -> None:
    """AWQ's outputs lie beside each other in words: a rank reads all of them and keeps its own."""
    config = {**tiny_config(**heads(6)), "quantization_config": awq_config(0)}
    cfg = ModelConfig.from_dict(config)
    expected = expected_tensors(cfg, 1)
    whole: dict[str, Tensor] = {}
    stored: dict[str, Tensor] = {}
    for name, tensor in random_tensors(expected, seed=5, dtype=F32).items():
        if "_proj" in name and len(tensor) % 8 == 0:
            c = coded(tensor, 0)
            whole[name], parts_of = c.weight, awq(name, c)
            stored |= parts_of
        else:
            whole[name] = stored[name] = tensor
    assert len(stored) > len(whole)
    write_checkpoint(tmp_path, config, stored, shards=2)
    for targets, rows in parts(config, size):
        load_checkpoint(
            tmp_path, expected, lambda name, tensor, to=targets: to[name].copy_(tensor), dtype=F32,
            quantization=cfg.quantization, shared=shared_tensors(cfg, 1), rows=rows,
        )  # fmt: skip
        hold(targets, rows, whole)
