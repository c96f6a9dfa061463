"""Measures a trained `nextn-tiny`: losses, acceptance of chained drafts, loops.

`python recipes/tiny/evaluate.py --weights build/tiny/tuned.pt` writes `build/tiny/report.json`.

The weights are rounded to bf16, as in the shipped file, and multiplied in f32, as plain torch serves them.
Each held-out prompt gets 128 new tokens; EOS is a token like any other. A draft is accepted only if it equals
the target's choice, so the text does not depend on drafts. One pass of the unrolled NextN module over the
text gives the drafts of every possible root, and the verify steps are counted from them. At T > 0 the drafter
uses the target's noise at the same position (common random numbers).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from export import load_weights
from generate import Noise, choose, frozen, generate, gumbel, read_prompts
from model import Arithmetic, Tiny
from prompts import OUT
from tokens import prepare
from torch import Tensor
from train import held_out_losses

NEW = 128
DEPTH = 3
LOOP_TAIL, LOOP_PERIOD = 32, 12


def as_shipped(model: Tiny) -> Tiny:
    """Rounds all parameters to bf16, as in the shipped file, in place."""
    for p in model.parameters():
        p.data = p.data.to(torch.bfloat16).float()
    return model


def loops(completion: list[int], tail: int = LOOP_TAIL, period: int = LOOP_PERIOD) -> bool:
    """Whether the last `tail` tokens repeat a phrase of at most `period` tokens to the end.

    >>> loops([7, 8, 9] * 20), loops(list(range(60)))
    (True, False)
    """
    end = completion[-tail:]
    return len(end) == tail and any(end[p:] == end[:-p] for p in range(1, period + 1))


@torch.inference_mode()
def matches(
    model: Tiny, prompts: list[list[int]], completions: Tensor, temperature: float, noise: Noise | None
) -> Tensor:
    """[B, new, DEPTH] bool: with output token t as the root, whether draft j + 1 equals token t + j + 1.

    Drafts after a wrong one do not count, so the chain's input is the true tokens.
    """
    b, new = completions.shape
    lengths = torch.tensor([len(p) for p in prompts])
    tokens = torch.zeros(b, int(lengths.max()) + new, dtype=torch.long)
    for row, prompt, done in zip(tokens, prompts, completions, strict=True):
        row[: len(prompt) + new] = torch.cat((torch.tensor(prompt), done))
    out = torch.zeros(b, new, DEPTH, dtype=torch.bool)
    for s in range(0, b, 16):
        rows = slice(s, s + 16)
        hidden, embeds = model.trunk(tokens[rows])
        each = torch.arange(len(hidden))
        for j, normed in enumerate(model.drafts(hidden, embeds, DEPTH), start=1):
            for t in range(new - j):
                logits = model.lm_head(normed[each, lengths[rows] + t + j - 2])
                row_noise = noise(t + j)[rows] if noise else None
                out[rows, t, j - 1] = choose(logits, temperature, row_noise) == completions[rows, t + j]
    return out


def count_steps(match: Tensor, k: int) -> dict[str, object]:
    """Counts the verify steps with `k` drafts. match [B, new, >= k]. The first token comes from prefill."""
    new = match.shape[1]
    steps = committed = 0
    proposed, accepted = [0] * k, [0] * k
    for row in match.tolist():
        t = 0
        while t < new - 1:
            offered = min(k, new - 1 - t)
            run = 0
            while run < offered and row[t][run]:
                run += 1
            for j in range(offered):
                proposed[j] += 1
                accepted[j] += j < run
            t += min(run + 1, new - 1 - t)
            steps += 1
        committed += new - 1
    return {
        "accept_length": round(committed / steps, 4),
        "acceptance_by_position": [round(a / p, 4) for a, p in zip(accepted, proposed, strict=True)],
    }


def acceptance(
    model: Tiny, prompts: list[list[int]], temperature: float, seed: int = 0, new: int = NEW
) -> tuple[dict[str, object], Tensor]:
    """Accept length and acceptance by position for 1, 2 and 3 drafts, and the completions [B, new]."""
    noise = gumbel(seed, len(prompts), model.cfg.vocab_size) if temperature else None
    completions = generate(model, prompts, new, temperature, noise)
    match = matches(model, prompts, completions, temperature, noise)
    report: dict[str, object] = {f"{k}_drafts": count_steps(match, k) for k in range(1, DEPTH + 1)}
    rows = completions.tolist()
    report["share_of_loops"] = sum(loops(r) for r in rows) / len(rows)
    report["share_of_long_loops"] = sum(loops(r, 64, 32) for r in rows) / len(rows)
    report["accept_length_2_drafts_without_loops"] = count_steps(
        match[torch.tensor([not loops(r) for r in rows])], 2
    )["accept_length"]
    return report, completions


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--work", type=Path, default=Path("build/tiny"))
    ap.add_argument("--weights", type=Path, default=None, help="default: WORK/tuned.pt")
    ap.add_argument("--prompts", type=Path, default=OUT)
    ap.add_argument("--show", type=int, default=3, help="completions to print")
    args = ap.parse_args()
    model = as_shipped(load_weights(args.weights or args.work / "tuned.pt"))
    tok, streams = prepare(args.work, model.cfg.vocab_size)
    texts = read_prompts(args.prompts)
    prompts = [tok.encode(t).ids for t in texts]
    report: dict[str, object] = {
        "held_out_losses": [round(x, 4) for x in held_out_losses(model, streams["held_out"], rows=96)]
    }
    with Arithmetic.use(torch.float32):
        model = frozen(model)
        report["greedy"], completions = acceptance(model, prompts, 0.0)
        report["temperature_0.7_seed_0"], _ = acceptance(model, prompts, 0.7)
    (args.work / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    for i in torch.linspace(0, len(texts) - 1, args.show).long().tolist():
        done = tok.decode(completions[i].tolist(), skip_special_tokens=False)
        print(f"{texts[i]}\x1b[36m{done}\x1b[0m\n{'-' * 80}")
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
