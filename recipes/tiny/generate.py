"""Batched generation with the training model: greedy, or sampled by seeded Gumbel-max choice.

`python recipes/tiny/generate.py --weights build/tiny/tuned.pt` prints completions of held-out prompts.

The cache has one latent and one rotated key per token and layer (absorbed MLA). A batch can have prompts of
different lengths. Letters as in model.py; n is the number of new positions, S the cache's length.
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Callable
from pathlib import Path

import torch
from model import Arithmetic, Attention, Layer, Linear, Tiny, rotate
from torch import Tensor

Noise = Callable[[int], Tensor]


def frozen(model: Tiny) -> Tiny:
    """A copy of the model for inference, with matrices converted to `Arithmetic.dtype`."""
    model = copy.deepcopy(model).eval().requires_grad_(False)
    for module in model.modules():
        if isinstance(module, Linear):
            module.weight.data = module.weight.data.to(Arithmetic.dtype)
    return model


def attend(attn: Attention, x: Tensor, cache: Tensor, at: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [B, n, C] at positions `at` [B, n] -> [B, n, C]; writes cache [B, S, kv_lora + rope]."""
    cfg, (b, n) = attn.cfg, at.shape
    q_nope, q_rope = attn.queries(x, cos, sin).split((cfg.qk_nope_head_dim, cfg.qk_rope_head_dim), dim=-1)
    latent, k_rope = attn.kv_a_proj_with_mqa(x).split((cfg.kv_lora_rank, cfg.qk_rope_head_dim), dim=-1)
    k_rope = rotate(k_rope[:, :, None], cos, sin)[:, :, 0]
    cache[torch.arange(b)[:, None], at] = torch.cat((attn.kv_a_layernorm(latent), k_rope), dim=-1)
    w = attn.kv_b_proj.weight.unflatten(0, (cfg.num_attention_heads, -1))
    w_k, w_v = w.split((cfg.qk_nope_head_dim, cfg.v_head_dim), dim=1)
    q = torch.cat((torch.einsum("bnhd,hdc->bnhc", q_nope, w_k), q_rope), dim=-1).flatten(1, 2)
    scores = torch.bmm(q, cache.transpose(1, 2)).float() * attn.scale
    later = torch.arange(cache.shape[1]) > at[..., None]
    scores = scores.unflatten(1, (n, -1)).masked_fill_(later[:, :, None], float("-inf"))
    p = scores.softmax(-1).to(cache.dtype).flatten(1, 2)
    mixed = torch.bmm(p, cache[..., : cfg.kv_lora_rank]).unflatten(1, (n, -1))
    return attn.o_proj(torch.einsum("bnhc,hvc->bnhv", mixed, w_v).flatten(-2))


def extend(model: Tiny, tokens: Tensor, at: Tensor, cache: Tensor) -> Tensor:
    """tokens and positions [B, n] -> hidden after the final norm [B, n, C]; cache [layers, B, S, .]."""
    cos, sin = model.cos[at], model.sin[at]
    x = model.embed_tokens(tokens).to(Arithmetic.dtype)
    for layer, layer_cache in zip(model.layers, cache, strict=True):
        assert isinstance(layer, Layer)
        x = x + attend(layer.self_attn, layer.input_layernorm(x), layer_cache, at, cos, sin)
        y = layer.post_attention_layernorm(x)
        x = x + layer.mlp(y.flatten(0, 1)).view_as(x)
    return model.norm(x)


def gumbel(seed: int, rows: int, vocab: int) -> Noise:
    """A function that returns the noise [rows, vocab] of output position t. It depends only on (seed, t)."""

    def noise(t: int) -> Tensor:
        gen = torch.Generator().manual_seed(seed * 1_000_003 + t)
        return -torch.empty(rows, vocab).exponential_(generator=gen).log_()

    return noise


def choose(logits: Tensor, temperature: float, noise: Tensor | None) -> Tensor:
    """logits [..., V] -> token ids: argmax, or Gumbel-max with `noise` at a temperature above 0."""
    if temperature == 0.0:
        return logits.argmax(-1)
    assert noise is not None
    return (logits.float() / temperature + noise).argmax(-1)


@torch.inference_mode()
def generate(
    model: Tiny,
    prompts: list[list[int]],
    new: int,
    temperature: float = 0.0,
    noise: Noise | None = None,
    states: list[Tensor] | None = None,
) -> Tensor:
    """Completions [B, new] of token prompts (BOS included). `model`: a result of `frozen`. EOS does not end a
    completion.

    `states`: a list to which the hidden states after the final norm are appended, [B, longest prompt + new,
    C]. Those of a row's last token are not set.
    """
    cfg, b = model.cfg, len(prompts)
    lengths = torch.tensor([len(p) for p in prompts])
    longest = int(lengths.max())
    tokens = torch.zeros(b, longest, dtype=torch.long)
    for row, prompt in zip(tokens, prompts, strict=True):
        row[: len(prompt)] = torch.tensor(prompt)
    width = cfg.kv_lora_rank + cfg.qk_rope_head_dim
    cache = torch.zeros(cfg.num_hidden_layers, b, longest + new, width, dtype=Arithmetic.dtype)
    # Padding writes slots after a prompt's end. They are overwritten before attention reads them.
    hidden = torch.cat(
        [
            extend(
                model,
                tokens[s : s + 16],
                torch.arange(longest).expand(len(tokens[s : s + 16]), -1),
                cache[:, s : s + 16],
            )
            for s in range(0, b, 16)
        ]
    )
    last = hidden[torch.arange(b), lengths - 1]
    out = torch.empty(b, new, dtype=torch.long)
    kept = torch.cat((hidden, hidden.new_zeros(b, new, cfg.hidden_size)), dim=1)
    for t in range(new):
        out[:, t] = choose(model.lm_head(last), temperature, noise(t) if noise else None)
        if t + 1 < new:
            last = extend(model, out[:, t : t + 1], (lengths + t)[:, None], cache)[:, 0]
            kept[torch.arange(b), lengths + t] = last
    if states is not None:
        states.append(kept)
    return out


def read_prompts(path: Path) -> list[str]:
    return [json.loads(line)["prompt"] for line in path.read_text(encoding="utf-8").splitlines()]


def main() -> None:
    from export import load_weights
    from prompts import OUT
    from tokenizers import Tokenizer

    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--weights", type=Path, default=Path("build/tiny/tuned.pt"))
    ap.add_argument("--tokenizer", type=Path, default=Path("build/tiny/tokenizer.json"))
    ap.add_argument("--prompts", type=Path, default=OUT)
    ap.add_argument("--count", type=int, default=4)
    ap.add_argument("--new", type=int, default=128)
    ap.add_argument("--temperature", type=float, default=0.0)
    ap.add_argument("--seed", type=int, default=0)
    args = ap.parse_args()
    tok = Tokenizer.from_file(str(args.tokenizer))
    model = frozen(load_weights(args.weights))
    texts = read_prompts(args.prompts)[: args.count]
    noise = gumbel(args.seed, len(texts), model.cfg.vocab_size) if args.temperature else None
    out = generate(model, [tok.encode(t).ids for t in texts], args.new, args.temperature, noise)
    for text, ids in zip(texts, out.tolist(), strict=True):
        print(f"{text}\x1b[36m{tok.decode(ids, skip_special_tokens=False)}\x1b[0m\n{'-' * 80}")


if __name__ == "__main__":
    main()
