"""The recipe of nextn-tiny: export, generation, the unrolled MTP module, the counting of verify steps."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

RECIPE = Path(__file__).parents[2] / "recipes" / "tiny"


@pytest.fixture(autouse=True)
def _recipe_on_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(RECIPE))
    yield
    for name in [n for n, m in sys.modules.items() if str(RECIPE) in str(getattr(m, "__file__", ""))]:
        del sys.modules[name]


@pytest.fixture
def tiny():
    from model import Tiny, TinyConfig

    torch.manual_seed(0)
    cfg = TinyConfig(
        vocab_size=96, hidden_size=32, num_hidden_layers=3, intermediate_size=48, moe_intermediate_size=16,
        q_lora_rank=16, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=8, v_head_dim=8,
        max_position_embeddings=128, rope_original=32,
    )  # fmt: skip
    model = Tiny(cfg).eval().requires_grad_(False)
    for p in model.parameters():
        if p.ndim == 1:
            p.add_(0.2 * torch.randn_like(p))
    return model


@pytest.fixture
def f32() -> Iterator[None]:
    from model import Arithmetic

    with Arithmetic.use(torch.float32):
        yield


def naive_nextn(model, tokens: list[int], root: int, depth: int) -> list[torch.Tensor]:
    """Chained drafting without a cache, one position at a time: the drafter's logits at depth 1..depth
    when tokens[root] is the root, later tokens being fed as given."""
    cfg, nextn, attn = model.cfg, model.nextn, model.nextn.layer.self_attn
    hidden = model.trunk(torch.tensor([tokens]))[0][0]

    def turn(x: torch.Tensor, position: int) -> torch.Tensor:
        even, odd = x[..., 0::2], x[..., 1::2]
        c, s = model.cos[position], model.sin[position]
        return torch.stack((even * c - odd * s, even * s + odd * c), -1).flatten(-2)

    entries: list[tuple[torch.Tensor, torch.Tensor]] = []

    def step(position: int, h: torch.Tensor) -> torch.Tensor:
        embed = nextn.enorm(model.embed_tokens.weight[tokens[position + 1]])
        x = nextn.eh_proj(torch.cat((embed, nextn.hnorm(h))))
        y = nextn.layer.input_layernorm(x)
        q = attn.q_b_proj(attn.q_a_layernorm(attn.q_a_proj(y))).view(cfg.num_attention_heads, -1)
        kv = attn.kv_a_proj_with_mqa(y)
        latent = attn.kv_a_layernorm(kv[: cfg.kv_lora_rank])
        entries.append((latent, turn(kv[cfg.kv_lora_rank :], position)))
        out = []
        for head in range(cfg.num_attention_heads):
            nope, rope = q[head, : cfg.qk_nope_head_dim], turn(q[head, cfg.qk_nope_head_dim :], position)
            keys_values = [attn.kv_b_proj(c).view(cfg.num_attention_heads, -1)[head] for c, _ in entries]
            pairs = zip(keys_values, entries, strict=True)
            scores = torch.stack([nope @ kv[: len(nope)] + rope @ k for kv, (_, k) in pairs])
            p = (scores * attn.scale).softmax(0)
            out.append(sum(a * kv[cfg.qk_nope_head_dim :] for a, kv in zip(p, keys_values, strict=True)))
        x = x + attn.o_proj(torch.cat(out))
        x = x + nextn.layer.mlp(nextn.layer.post_attention_layernorm(x)[None])[0]
        return nextn.shared_head_norm(x)

    for position in range(root - 1):
        step(position, hidden[position])
    h, logits = hidden[root - 1], []
    for d in range(depth):
        h = step(root - 1 + d, h)
        logits.append(F.linear(h, model.lm_head.weight))
    return logits


def test_unrolled_mtp_equals_chained_drafting(tiny, f32) -> None:
    tokens = torch.randint(5, 96, (1, 20), generator=torch.Generator().manual_seed(1))
    hidden, embeds = tiny.trunk(tokens)
    outs = tiny.drafts(hidden, embeds, 3)
    for root in (1, 2, 7, 15):
        for d, logits in enumerate(naive_nextn(tiny, tokens[0].tolist(), root, 3), start=1):
            torch.testing.assert_close(
                tiny.lm_head(outs[d - 1][0, root + d - 2]), logits, atol=1e-4, rtol=1e-4
            )


def test_generation_with_cache_equals_without(tiny, f32) -> None:
    from generate import frozen, generate, gumbel

    prompts = [[0, 9, 8, 7, 50], [0, 33], [0, *range(20, 45)]]
    noise = gumbel(3, len(prompts), 96)
    for temperature in (0.0, 1.0):
        out = generate(frozen(tiny), prompts, 12, temperature, noise if temperature else None)
        for b, prompt in enumerate(prompts):
            tokens = list(prompt)
            for t in range(12):
                logits = tiny.lm_head(tiny.trunk(torch.tensor([tokens]))[0])[0, -1]
                if temperature:
                    logits = logits + noise(t)[b]
                tokens.append(int(logits.argmax()))
            assert out[b].tolist() == tokens[len(prompt) :]


def test_matches_and_steps_equal_a_simulation(tiny, f32) -> None:
    from evaluate import count_steps, matches
    from generate import frozen, generate

    prompt, new = [0, 9, 8, 7], 14
    out = generate(frozen(tiny), [prompt], new)
    match = matches(frozen(tiny), [prompt], out, 0.0, None).clone()
    match[0, 5], match[0, 9] = torch.tensor([True, True, False]), torch.tensor([True, False, True])
    tokens = prompt + out[0].tolist()
    for t in (0, 3, 8):
        drafts = [int(x.argmax()) for x in naive_nextn(tiny, tokens, len(prompt) + t, 3)]
        assert match[0, t].tolist() == [d == tokens[len(prompt) + t + j] for j, d in enumerate(drafts, 1)]
    t = steps = 0
    while t < new - 1:
        run = 0
        while run < 3 and t + run + 1 < new and bool(match[0, t, run]):
            run += 1
        t, steps = t + run + 1, steps + 1
    assert count_steps(match, 3)["accept_length"] == pytest.approx((new - 1) / steps, abs=1e-4)


def test_count_steps_by_hand() -> None:
    from evaluate import count_steps

    match = torch.zeros(1, 7, 2, dtype=torch.bool)
    match[0, 0] = True  # root 0: both accepted, next root 3
    match[0, 3, 1] = True  # root 3: the first is wrong, so the second does not count; next root 4
    match[0, 4, 0] = True  # root 4: one accepted, next root 6, the last token
    assert count_steps(match, 2) == {"accept_length": 2.0, "acceptance_by_position": [0.6667, 0.3333]}


def test_export_has_deepseeks_names_and_dtypes(tiny, tmp_path: Path) -> None:
    from export import export

    (tmp_path / "tok.json").write_text("{}")
    export(tiny, tmp_path / "tok.json", tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["architectures"] == ["DeepseekV3ForCausalLM"]
    assert config["num_nextn_predict_layers"] == 1
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    attention = {
        f"self_attn.{n}.weight"
        for n in ("q_a_proj", "q_a_layernorm", "q_b_proj", "kv_a_proj_with_mqa", "kv_a_layernorm",
                  "kv_b_proj", "o_proj")
    }  # fmt: skip
    projections = ("gate_proj", "up_proj", "down_proj")
    moe = {f"mlp.experts.{e}.{p}.weight" for e in range(8) for p in projections}
    moe |= {f"mlp.shared_experts.{p}.weight" for p in projections}
    moe |= {"mlp.gate.weight", "mlp.gate.e_score_correction_bias"}
    norms = {"input_layernorm.weight", "post_attention_layernorm.weight"}
    names = {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"}
    names |= {f"model.layers.0.{n}" for n in attention | norms}
    names |= {f"model.layers.0.mlp.{p}.weight" for p in projections}
    names |= {f"model.layers.{i}.{n}" for i in (1, 2, 3) for n in attention | norms | moe}
    names |= {
        f"model.layers.3.{n}.weight"
        for n in ("embed_tokens", "enorm", "hnorm", "eh_proj", "shared_head.norm", "shared_head.head")
    }
    assert set(tensors) == names
    for name, tensor in tensors.items():
        wanted = torch.float32 if name.endswith("e_score_correction_bias") else torch.bfloat16
        assert tensor.dtype == wanted, name
    assert torch.equal(tensors["model.layers.3.embed_tokens.weight"], tensors["model.embed_tokens.weight"])
    assert torch.equal(tensors["model.layers.3.shared_head.head.weight"], tensors["lm_head.weight"])


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [([1, 2, 3] * 20, True), (list(range(64)), False), ([5] * 31, False), ([5] * 32, True),
     (list(range(13)) * 6, False), (list(range(12)) * 6, True), ([1, 2] * 30 + [3], False)],
)  # fmt: skip
def test_loops(tokens: list[int], expected: bool) -> None:
    from evaluate import loops

    assert loops(tokens) is expected


def test_repeated_marks_the_third_time_nearby() -> None:
    from repetition import repeated

    phrase = list(range(6))
    assert not any(repeated(phrase * 2 + [9], 0))
    assert repeated(phrase * 3, 12) == [False] * 5 + [True]
    far = phrase + list(range(100, 180)) + phrase + list(range(200, 280)) + phrase
    assert not any(repeated(far, 0))


def test_mtp_loss_has_the_gradient_of_the_plain_formula(tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    from distil import TAU_GREEDY, _HeadMatch

    gen = torch.Generator().manual_seed(2)
    head = torch.randn(96, 32, generator=gen).to(torch.bfloat16).float()
    x, target = (torch.randn(7, 32, generator=gen).to(torch.bfloat16) for _ in range(2))
    tau, weight = torch.full((7,), TAU_GREEDY), torch.rand(1, 7, generator=gen)
    got = x.clone().requires_grad_()
    loss = _HeadMatch.apply(head, target, tau, weight, got)[0]
    loss.backward()
    want = x.float().requires_grad_()
    label = (target.float() @ head.t() / TAU_GREEDY).softmax(-1)
    plain = -((label * (want @ head.t() / TAU_GREEDY).log_softmax(-1)).sum(-1) * weight[0]).sum()
    plain.backward()
    assert loss.item() == pytest.approx(plain.item(), rel=2e-2)
    assert F.cosine_similarity(got.grad.float().flatten(), want.grad.flatten(), dim=0) > 0.999
