"""Trains the trunk and the MTP module of `nextn-tiny` together. This is the first of the recipe's two stages.

`python recipes/tiny/train.py --minutes 95` trains from random weights and writes `build/tiny/trunk.pt`. If it
was stopped, the same command continues. `make -C recipes/tiny` runs the whole recipe.

The schedule depends on the share of the time that has passed, not on a number of steps: warm up, hold, then
fall nearly to zero over the last 40 %. In this last part sequences are twice as long.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from head_loss import head_loss
from model import MoE, Tiny, TinyConfig
from tokens import prepare
from torch import Tensor
from tqdm import tqdm

MIX = {"lib": 0.5, "tests": 0.2, "packages": 0.3}
TOKENS_PER_STEP = 6144
MTP_DEPTH = 3
MTP_SHARE = 6  # in every second step, one of six sequences also goes through the unrolled MTP module
MTP_WEIGHT = 0.3
DECAY_FROM = 0.6
BALANCE_RATE = 2e-3


def windows(stream: Tensor, length: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yields windows [length] endlessly. A window begins with BOS; each pass cuts the stream at another
    offset."""
    body = length - 1
    while True:
        start = int(torch.randint(0, body, (1,), generator=generator))
        n = (stream.numel() - start) // body
        for i in torch.randperm(n, generator=generator).tolist():
            piece = stream[start + i * body : start + (i + 1) * body].long()
            yield torch.cat((torch.zeros(1, dtype=torch.long), piece))


def batches(
    streams: dict[str, Tensor], length: int, seed: int, tokens_per_step: int = TOKENS_PER_STEP
) -> Iterator[Tensor]:
    gen = torch.Generator().manual_seed(seed)
    sources = {k: windows(streams[k], length, gen) for k in MIX}
    weights = torch.tensor(list(MIX.values()))
    while True:
        picks = torch.multinomial(weights, tokens_per_step // length, replacement=True, generator=gen)
        yield torch.stack([next(sources[list(MIX)[p]]) for p in picks.tolist()])


def losses(model: Tiny, tokens: Tensor, mtp_rows: int, depth: int) -> tuple[Tensor, list[float]]:
    """tokens [B, L] -> (loss to minimise, [main, depth 1, depth 2, ...] mean cross entropies)."""
    length = tokens.shape[1]
    hidden, embeds = model.trunk(tokens)

    def ce(x: Tensor, labels: Tensor) -> Tensor:
        n = labels.numel()
        return head_loss(x.flatten(0, 1), model.lm_head, labels.flatten(), torch.full((n,), 1.0 / n))

    main = ce(hidden[:, :-1].contiguous(), tokens[:, 1:])
    total, parts = main, [main.item()]
    if mtp_rows:
        outs = model.drafts(hidden[:mtp_rows], embeds[:mtp_rows], depth)
        for d, out in enumerate(outs, start=1):
            loss = ce(out[:, d - 1 : length - 2].contiguous(), tokens[:mtp_rows, d + 1 :])
            total = total + loss * (MTP_WEIGHT / depth)
            parts.append(loss.item())
    return total, parts


@torch.no_grad()
def held_out_losses(model: Tiny, stream: Tensor, length: int = 512, rows: int = 24) -> list[float]:
    model.eval()
    take = stream[: rows * (length - 1)].long().view(rows, length - 1)
    tokens = torch.cat((torch.zeros(rows, 1, dtype=torch.long), take), 1)
    parts = losses(model, tokens, rows, MTP_DEPTH)[1]
    model.train()
    return parts


def optimizers(model: Tiny, muon_lr: float, adam_scale: float) -> list[torch.optim.Optimizer]:
    """Muon for every hidden matrix, and AdamW for embeddings, head, router and norms."""
    matrices, vectors = [], []
    for name, p in model.named_parameters():
        if p.ndim == 2 and not any(w in name for w in ("embed_tokens", "lm_head", "gate.weight")):
            matrices.append(p)
        elif "embed_tokens" not in name and "lm_head" not in name:
            vectors.append(p)
    groups = [
        {"params": [model.embed_tokens.weight], "lr": 1e-2 * adam_scale},
        {"params": [model.lm_head.weight], "lr": 2e-3 * adam_scale},
        {"params": vectors, "lr": 2e-3 * adam_scale},
    ]
    return [
        torch.optim.Muon(matrices, lr=muon_lr, momentum=0.95, weight_decay=0.02),
        torch.optim.AdamW(groups, betas=(0.9, 0.97), weight_decay=0.0, fused=True),
    ]


def schedule(done: float) -> float:
    """Learning rate factor at the share `done` of the run."""
    if done < DECAY_FROM:
        return min(1.0, 0.05 + done / 0.02)
    return max(0.0, (1.0 - done) / (1.0 - DECAY_FROM)) * 0.98 + 0.02


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--work", type=Path, default=Path("build/tiny"))
    ap.add_argument("--minutes", type=float, default=95.0)
    ap.add_argument("--muon-lr", type=float, default=0.02)
    ap.add_argument("--adam-scale", type=float, default=1.0)
    args = ap.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    cfg = TinyConfig()
    _, streams = prepare(args.work, cfg.vocab_size)
    model = Tiny(cfg).train()
    opts = optimizers(model, args.muon_lr, args.adam_scale)
    base = [[g["lr"] for g in o.param_groups] for o in opts]
    step, elapsed, tokens_seen = 0, 0.0, 0
    saved = args.work / "training.pt"
    if saved.exists():
        state = torch.load(saved)
        model.load_state_dict(state["model"])
        for o, s in zip(opts, state["optimizers"], strict=True):
            o.load_state_dict(s)
        step, elapsed, tokens_seen = state["step"], state["elapsed"], state["tokens"]

    def save() -> None:
        tmp = saved.with_suffix(".tmp")
        torch.save(
            {
                "model": model.state_dict(),
                "optimizers": [o.state_dict() for o in opts],
                "step": step,
                "elapsed": elapsed,
                "tokens": tokens_seen,
            },
            tmp,
        )
        tmp.replace(saved)

    log = (args.work / "log.jsonl").open("a")
    budget = args.minutes * 60
    bar = tqdm(total=round(budget), initial=round(elapsed), unit="s", mininterval=5)
    short, long = batches(streams, 256, 1000 + step), batches(streams, 512, 2000 + step)
    last_save = time.monotonic()
    while elapsed < budget:
        begin = time.monotonic()
        done = elapsed / budget
        for o, lrs in zip(opts, base, strict=True):
            for g, lr in zip(o.param_groups, lrs, strict=True):
                g["lr"] = lr * schedule(done)
        tokens = next(short if done < DECAY_FROM else long)
        mtp_rows = tokens.shape[0] // MTP_SHARE if step % 2 else 0
        loss, parts = losses(model, tokens, mtp_rows, MTP_DEPTH)
        loss.backward()
        for o in opts:
            o.step()
            o.zero_grad(set_to_none=True)
        for module in model.modules():
            if isinstance(module, MoE):
                module.balance(BALANCE_RATE * schedule(done))
        step += 1
        tokens_seen += tokens.numel()
        elapsed += time.monotonic() - begin
        row: dict[str, object] = {
            "step": step,
            "elapsed": round(elapsed, 1),
            "tokens": tokens_seen,
            "train": [round(p, 4) for p in parts],
        }
        if step % 100 == 0:
            row["held_out"] = [round(p, 4) for p in held_out_losses(model, streams["held_out"])]
        log.write(json.dumps(row) + "\n")
        log.flush()
        bar.update(round(elapsed) - bar.n)
        bar.set_postfix_str(f"step {step} loss {parts[0]:.2f}", refresh=False)
        if time.monotonic() - last_save > 240:
            save()
            last_save = time.monotonic()
    save()
    torch.save(model.state_dict(), args.work / "trunk.pt")
    print(
        json.dumps(
            {"steps": step, "tokens": tokens_seen, "held_out": held_out_losses(model, streams["held_out"])}
        )
    )


if __name__ == "__main__":
    main()
