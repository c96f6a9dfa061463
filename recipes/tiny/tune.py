"""The recipe's second stage: the trunk unlearns loops, then the MTP module learns the trunk's choices.

`python recipes/tiny/tune.py --minutes 14` reads `build/tiny/trunk.pt` and writes `build/tiny/tuned.pt`:

1. repetition (21 % of the time): trains the trunk on real text and on its own loops -> quiet.pt
2. a first round (64 %): rollouts of training prompts, two thirds greedy and one third at T = 0.7, then
   distillation of only the MTP module on them -> distilled.pt
3. a second round (15 %): new rollouts, all at T = 0.7, and distillation at a third of the learning rates
   -> tuned.pt

If a part was stopped, the same command starts it again; finished parts are kept. Results go to
`build/tiny/tune.jsonl`.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import distil
import torch
import train
from evaluate import loops
from export import load_weights
from generate import frozen, read_prompts
from model import Tiny, TinyConfig
from prompts import OUT
from repetition import FEWEST, UNLIKELIHOOD_WEIGHT, repeated_mask, unlikelihood
from rollouts import Prompts, Rollouts, join, roll_out
from tokens import prepare
from torch import Tensor
from tqdm import tqdm

REPETITION_SHARE = 0.21
NEW = 128
REPETITION_SCALE = 0.1  # factor of the first stage's learning rates
REAL_TOKENS, REAL_LENGTH = 3072, 512
ROLLOUT_ROWS = 12
REPETITION_PROMPTS, REPETITION_LONGEST = 64, 128
ROLLOUT_PROMPTS, ROLLOUT_LONGEST = 128, 192
DISTIL_ROWS = 8


@dataclass(frozen=True)
class Round:
    """One round: rollouts, then distillation on them. One of `sampled_one_in` batches of rollouts is sampled
    at T = 0.7."""

    weights: str  # the file that is written at the end
    rollouts_share: float  # share of the time
    distillation_share: float
    sampled_one_in: int
    muon_lr: float
    adam_lr: float
    seed: int


ROUNDS = (
    Round("distilled.pt", 0.17, 0.47, 3, 0.015, 1.5e-3, seed=12),
    Round("tuned.pt", 0.04, 0.11, 1, 0.005, 5e-4, seed=13),
)


class Clock:
    """A time budget with a progress bar. `spent` returns the share of the time that has passed."""

    def __init__(self, name: str, seconds: float) -> None:
        self.seconds, self.begin = seconds, time.monotonic()
        self.bar = tqdm(total=round(seconds), desc=name, unit="s", mininterval=5)

    def spent(self, note: str = "") -> float:
        elapsed = time.monotonic() - self.begin
        self.bar.set_postfix_str(note, refresh=False)
        self.bar.update(min(round(elapsed), self.bar.total) - self.bar.n)
        return elapsed / self.seconds


def set_rates(opts: list[torch.optim.Optimizer], base: list[list[float]], factor: float) -> None:
    for o, rates in zip(opts, base, strict=True):
        for g, rate in zip(o.param_groups, rates, strict=True):
            g["lr"] = rate * factor


def rates_of(opts: list[torch.optim.Optimizer]) -> list[list[float]]:
    return [[g["lr"] for g in o.param_groups] for o in opts]


def greedy_figures(model: Tiny, prompts: list[list[int]], held_out: Tensor) -> dict[str, float]:
    """Measurements on held-out text: loss, share of looping greedy completions, share of repeated tokens."""
    model.eval()
    batch = roll_out(frozen(model), prompts, NEW, 0.0, 0)
    rows = [r[e - NEW : e] for r, e in zip(batch.tokens.tolist(), batch.ends.tolist(), strict=True)]
    return {
        "held_out_loss": round(train.held_out_losses(model, held_out)[0], 4),
        "share_of_loops": sum(map(loops, rows)) / len(rows),
        "share_of_repeated_tokens": round(repeated_mask(batch).sum().item() / (NEW * len(rows)), 4),
    }


def own_repetitions(model: Tiny, prompts: Prompts) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields (tokens, mask) of greedy completions that repeat themselves, endlessly. Every few batches the
    current model makes new ones."""
    while True:
        model.eval()
        batch = roll_out(frozen(model), prompts.take(REPETITION_PROMPTS, REPETITION_LONGEST), NEW, 0.0, 0)
        model.train()
        mask = repeated_mask(batch)
        rows = mask.any(1).nonzero()[:, 0]
        for pick in rows[torch.randperm(len(rows))].split(ROLLOUT_ROWS) if len(rows) else ():
            yield batch.tokens[pick].long(), mask[pick]


def unlearn_loops(model: Tiny, streams: dict[str, Tensor], prompts: Prompts, seconds: float) -> int:
    """Trains the trunk in place. Returns the number of steps."""
    model.nextn.requires_grad_(False)
    opts = train.optimizers(model, 0.02 * REPETITION_SCALE, REPETITION_SCALE)
    base = rates_of(opts)
    real = train.batches(streams, REAL_LENGTH, seed=3000, tokens_per_step=REAL_TOKENS)
    own = own_repetitions(model, prompts)
    clock, step, note = Clock("repetition", seconds), 0, ""
    while (done := clock.spent(note)) < 1:
        tokens, mask = next(own)
        model.train()
        set_rates(opts, base, min(1.0, 2 * (1 - done)))
        loss, parts = train.losses(model, next(real), 0, 0)
        penalty = unlikelihood(model, tokens, mask) / max(FEWEST, int(mask.sum()))
        (loss + UNLIKELIHOOD_WEIGHT * penalty).backward()
        for o in opts:
            o.step()
            o.zero_grad(set_to_none=True)
        step += 1
        note = f"step {step} loss {parts[0]:.2f} unlikelihood {penalty.item():.2f}"
    model.nextn.requires_grad_(True)
    return step


def make_rollouts(model: Tiny, prompts: Prompts, turn: Round, seconds: float) -> Rollouts:
    fast = frozen(model)
    parts: list[Rollouts] = []
    clock = Clock("rollouts", seconds)
    while clock.spent(f"{len(parts) * ROLLOUT_PROMPTS * NEW} tokens") < 1 or not parts:
        temperature = 0.7 if (len(parts) + 1) % turn.sampled_one_in == 0 else 0.0
        seed = 100 * turn.seed + len(parts)
        parts.append(roll_out(fast, prompts.take(ROLLOUT_PROMPTS, ROLLOUT_LONGEST), NEW, temperature, seed))
    return join(parts)


def distil_mtp(model: Tiny, rollouts: Rollouts, turn: Round, seconds: float, log: Path) -> int:
    """Trains the MTP module in place. Returns the number of steps."""
    opts = distil.optimizers(model, turn.muon_lr, turn.adam_lr)
    base = rates_of(opts)
    gen = torch.Generator().manual_seed(0)
    weights = torch.tensor(distil.DEPTH_WEIGHTS)
    clock, step, note = Clock("distillation", seconds), 0, ""
    model.train()
    while (done := clock.spent(note)) < 1:
        set_rates(opts, base, min(1.0, (step + 1) / 10, (1 - done) / 0.7))
        pick = torch.randint(0, len(rollouts.ends), (DISTIL_ROWS,), generator=gen)
        by_depth = distil.mtp_loss(model, rollouts.select(pick))
        (by_depth * weights).sum().backward()
        for o in opts:
            o.step()
            o.zero_grad(set_to_none=True)
        step += 1
        note = f"step {step} loss {by_depth[0].item():.2f}"
        losses = [round(x, 4) for x in by_depth.tolist()]
        record(log, {"part": "distillation", "round": turn.weights, "step": step, "loss": losses})
    return step


def record(log: Path, row: dict[str, object]) -> None:
    with log.open("a") as f:
        f.write(json.dumps(row) + "\n")


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--work", type=Path, default=Path("build/tiny"))
    ap.add_argument("--minutes", type=float, default=14.0)
    args = ap.parse_args()
    work, log = args.work, args.work / "tune.jsonl"
    torch.manual_seed(0)
    tok, streams = prepare(work, TinyConfig().vocab_size)
    seconds = args.minutes * 60
    held_out_prompts = [tok.encode(t).ids for t in read_prompts(OUT)]

    if not (work / "quiet.pt").exists():
        model = load_weights(work / "trunk.pt")
        record(log, {"part": "before", **greedy_figures(model, held_out_prompts, streams["held_out"])})
        steps = unlearn_loops(model, streams, Prompts(tok, streams, seed=11), REPETITION_SHARE * seconds)
        figures = greedy_figures(model, held_out_prompts, streams["held_out"])
        record(log, {"part": "repetition", "steps": steps, **figures})
        torch.save(model.state_dict(), work / "quiet.pt")
    latest = work / "quiet.pt"
    for turn in ROUNDS:
        if not (work / turn.weights).exists():
            model = load_weights(latest)
            rollouts = make_rollouts(
                model, Prompts(tok, streams, turn.seed), turn, turn.rollouts_share * seconds
            )
            own = int((rollouts.ends - rollouts.starts).sum())
            steps = distil_mtp(model, rollouts, turn, turn.distillation_share * seconds, log)
            record(log, {"part": "round", "round": turn.weights, "rollout_tokens": own, "steps": steps})
            torch.save(model.state_dict(), work / turn.weights)
        latest = work / turn.weights


if __name__ == "__main__":
    main()
