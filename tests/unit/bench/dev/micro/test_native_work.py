"""What a native model's step must read, against the count for plain tensors and by hand."""

from __future__ import annotations

import pytest
from support.checkpoints import gqa_config

from nextn.bench.dev.micro.arithmetic import FLOATS
from nextn.bench.dev.micro.native_shares import step_shares
from nextn.bench.dev.micro.native_work import expert_bytes, native_step_work, weight_bytes
from nextn.bench.dev.micro.step_work import Step, step_work
from nextn.config import EMBEDDED, model_folder
from nextn.families.config import ModelConfig
from nextn.models.native import NativeModel
from nextn.models.native_weights import W8A16
from nextn.ops.cpu.interface import BF16, E4M3, F32, INT8, Weight
from nextn.ops.cpu.library import NoLibrary, library
from nextn.ops.cpu.weights import PackedWeight

CFG = ModelConfig.from_folder(model_folder(EMBEDDED))  # widths are multiples of 16, experts are not
DECODE = Step(rows=1, end=100, chosen=1, experts=22.0)
VERIFY = Step(rows=3, end=100, chosen=3, experts=50.5, drafts=2, extended=1.5)


@pytest.fixture(autouse=True)
def _kernels() -> None:
    try:
        library()
    except NoLibrary as e:
        pytest.skip(f"no native kernels: {e}")


def norms(layers: int) -> int:
    """Elements of the norms of so many layers."""
    return layers * (2 * CFG.hidden_size + CFG.kv_lora_rank + (CFG.q_lora_rank or 0))


def test_bf16_is_the_plain_count_but_for_norms_in_f32_and_padding_of_gates() -> None:
    model = NativeModel(CFG, True, 1)
    moe = CFG.num_hidden_layers - CFG.first_k_dense_replace
    gate = 4 * (-CFG.n_routed_experts % 16) * CFG.hidden_size
    assert gate > 0
    hidden, layers = CFG.hidden_size, CFG.num_hidden_layers
    for step, elements, gates in (
        (DECODE, norms(layers) + hidden, moe),
        (VERIFY, norms(layers + 2) + hidden + 2 * 3 * hidden, moe + 2),
    ):
        plain, native = step_work(CFG, step, 2), native_step_work(model, step)
        assert native.flops == plain.flops
        assert native.bytes - plain.bytes == 2 * elements + gates * gate


def test_grouped_queries_in_bf16() -> None:
    shape = {"vocab_size": 512, "hidden_size": 128, "num_hidden_layers": 2, "head_dim": 32}
    cfg = ModelConfig.from_dict(gqa_config("Qwen3ForCausalLM", **shape, intermediate_size=96))
    model, step = NativeModel(cfg, 0, 1), Step(rows=2, end=100, chosen=1, experts=0)
    plain, native = step_work(cfg, step, 2), native_step_work(model, step)
    assert native.flops == plain.flops
    assert native.bytes - plain.bytes == 2 * (2 * (2 * 128 + 2 * 32) + 128)  # norms are in f32
    assert step_shares(model, step, (FLOATS,)) == {FLOATS: pytest.approx(1)}


def test_int8_halves_the_layers_and_adds_scales() -> None:
    bf16, int8 = (native_step_work(NativeModel(CFG, False, 1, q), DECODE) for q in (None, W8A16))
    hidden, queries = CFG.hidden_size, CFG.num_attention_heads * CFG.qk_head_dim
    down = (CFG.q_lora_rank or queries) + CFG.latent_dim
    matrices = [(down, hidden), (hidden, CFG.num_attention_heads * CFG.v_head_dim)]
    if CFG.q_lora_rank:
        matrices.append((queries, CFG.q_lora_rank))
    matrices *= CFG.num_hidden_layers

    def mlp(inner: int) -> list[tuple[int, int]]:
        return [(2 * inner, hidden), (hidden, inner)]

    moe = CFG.num_hidden_layers - CFG.first_k_dense_replace
    matrices += mlp(CFG.intermediate_size) * CFG.first_k_dense_replace
    matrices += mlp(CFG.n_shared_experts * CFG.moe_intermediate_size) * moe
    matrices += mlp(CFG.moe_intermediate_size) * 22  # the experts
    assert bf16.bytes - int8.bytes == sum(n_out * n_in - 4 * n_out for n_out, n_in in matrices)


def test_weights() -> None:
    assert weight_bytes(PackedWeight(20, 7, BF16).struct) == 32 * 8 * 2
    assert weight_bytes(PackedWeight(20, 7, BF16, members=5).struct) == 32 * 8 * 2
    assert weight_bytes(PackedWeight(20, 7, F32).struct) == 32 * 7 * 4
    assert weight_bytes(PackedWeight(16, 300, E4M3, block=128).struct) == 16 * 300 + 4 * 16 * 3
    assert weight_bytes(PackedWeight(16, 300, INT8).struct) == 16 * 300 + 4 * 16
    assert weight_bytes(Weight()) == 0


def test_an_expert() -> None:
    model = NativeModel(CFG, False, 1)
    assert expert_bytes(model) == 2 * 3 * CFG.hidden_size * CFG.moe_intermediate_size
    assert model.expert_bytes_read() == 0  # before the first step
