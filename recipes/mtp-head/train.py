"""Trains the module on the base's texts: at every depth of a chain, it learns to predict the base's choice.

The label of a row is the base's distribution after the true tokens, the same at every depth (as in
recipes/tiny/distil.py). Labels and predictions have a reduced vocabulary, the most frequent tokens of the
texts. With the full vocabulary, most of the arithmetic would be the head's, in training and in drafting
(FR-Spec, arXiv 2502.14856).

The schedule depends on the share of the time that has passed: warm up, hold, then fall nearly to zero over
the last half. Most of the time is spent on only the first depth, in small steps; in the same time this gains
several times as much as large steps at all depths. log.jsonl gets a line every LOG_SECONDS. training.pt is
written every few minutes, and a stopped run continues from it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from base import Base
from module import NextN
from texts import Text
from torch import Tensor
from tqdm import tqdm

DEPTH = 3
DEPTH_WEIGHTS = (1.0, 0.8, 0.6)
PROMPT_WEIGHT = 0.2  # weight of rows in prompts; rows in answers have weight 1
TAU = {True: 0.4, False: 0.7}  # whether a text is greedy -> temperature of labels and predictions
TOKENS_PER_STEP = 512
HELD_OUT = 24  # number of held-out texts, the first ones
LEARNING_RATE = 1.5e-3
DECAY_FROM = 0.5
UNROLL_FROM = 0.6  # share of the run after which all depths are trained; before, only the first
LOG_SECONDS, SAVE_SECONDS = 60, 180


@dataclass(frozen=True)
class Budget:
    seconds: float
    vocabulary: int
    seed: int


@dataclass(frozen=True)
class Batch:
    """tokens [B, L] int64, hidden [B, L, C] f32, starts, ends [B] (the answer is ids[start:end]), tau [B]."""

    tokens: Tensor
    hidden: Tensor
    starts: Tensor
    ends: Tensor
    tau: Tensor


class Corpus:
    """Texts with their hidden states. states: those of all texts, one text after another."""

    def __init__(self, texts: Sequence[Text], states: Tensor, device: torch.device) -> None:
        self.texts, self.states, self.device = texts, states, device
        lengths = [len(text.ids) for text in texts]
        self.begins = [sum(lengths[:i]) for i in range(len(lengths))]

    def batch(self, numbers: Sequence[int]) -> Batch:
        some = [self.texts[i] for i in numbers]
        ends = torch.tensor([len(text.ids) for text in some])
        longest = int(ends.max())
        tokens = torch.zeros(len(some), longest, dtype=torch.long)
        hidden = torch.zeros(len(some), longest, self.states.shape[1])
        for row, (i, text) in enumerate(zip(numbers, some, strict=True)):
            n, at = len(text.ids), self.begins[i]
            tokens[row, :n] = torch.tensor(text.ids)
            hidden[row, :n] = self.states[at : at + n].float()
        starts = torch.tensor([len(text.prompt) for text in some])
        tau = torch.tensor([TAU[text.temperature == 0] for text in some])
        return Batch(*(t.to(self.device) for t in (tokens, hidden, starts, ends, tau)))

    def batches(self, seed: int) -> Iterator[Batch]:
        """Yields batches endlessly, each of at most about TOKENS_PER_STEP tokens. A batch has texts of
        similar lengths."""
        gen = torch.Generator().manual_seed(seed)
        order = sorted(range(HELD_OUT, len(self.texts)), key=lambda i: len(self.texts[i].ids))
        groups: list[list[int]] = [[]]
        for i in order:
            if groups[-1] and (len(groups[-1]) + 1) * len(self.texts[i].ids) > TOKENS_PER_STEP:
                groups.append([])
            groups[-1].append(i)
        while True:
            for g in torch.randperm(len(groups), generator=gen).tolist():
                yield self.batch(groups[g])


def vocabulary(texts: Sequence[Text], size: int, vocab: int) -> list[int]:
    """The `size` most frequent tokens of the answers, in ascending order; of equally frequent ones, those
    with the smallest ids."""
    counts = torch.zeros(vocab, dtype=torch.long)
    for text in texts:
        counts.index_add_(0, torch.tensor(text.answer), torch.ones(len(text.answer), dtype=torch.long))
    order = torch.argsort(counts, descending=True, stable=True)[: min(size, vocab)]
    return sorted(order.tolist())


class _HeadMatch(torch.autograd.Function):
    """Cross entropy of softmax(head(x_d) / tau) against softmax(head(target) / tau). It is computed in chunks
    of rows, so that never all logits are in memory. xs: [T, C] for each depth; target [T, C]; weights
    [depths, T]; tau [T]."""

    @staticmethod
    def forward(ctx, head: Tensor, target: Tensor, tau: Tensor, weights: Tensor, *xs: Tensor):  # type: ignore[no-untyped-def]
        grads = [torch.zeros_like(x) for x in xs]
        sums = torch.zeros(len(xs), device=head.device)
        for s in range(0, target.shape[0], 512):
            rows = slice(s, s + 512)
            t = tau[rows, None]
            label = (F.linear(target[rows], head) / t).softmax(-1)
            for d, x in enumerate(xs):
                logp = (F.linear(x[rows], head) / t).log_softmax(-1)
                w = weights[d, rows]
                sums[d] -= ((label * logp).sum(-1) * w).sum()
                grads[d][rows] = (logp.exp_().sub_(label) * (w[:, None] / t)) @ head
        ctx.save_for_backward(*grads)
        return sums

    @staticmethod
    def backward(ctx, grad: Tensor):  # type: ignore[no-untyped-def]
        return None, None, None, None, *(g * grad[d] for d, g in enumerate(ctx.saved_tensors))


def losses(module: NextN, base: Base, head: Tensor, batch: Batch, depth: int = DEPTH) -> Tensor:
    """The weighted mean cross entropy over valid rows, by depth: [depth]."""
    outs = module(batch.hidden, base.embedding[batch.tokens], depth)
    length = batch.tokens.shape[1]
    at = torch.arange(length - 2, device=head.device)  # row p predicts token p + 2
    inside = at[None] + 2 < batch.ends[:, None]
    own = inside & (at[None] + 2 >= batch.starts[:, None])
    weight = PROMPT_WEIGHT * inside.float() + (1 - PROMPT_WEIGHT) * own.float()
    weight = weight / weight.sum()
    weights = torch.stack([weight * (at >= d) for d in range(depth)]).flatten(1)
    keep = weight.flatten() > 0
    flat = [x[:, : length - 2].flatten(0, 1)[keep] for x in outs]
    target = batch.hidden[:, 1 : length - 1].flatten(0, 1)[keep]
    tau = batch.tau[:, None].expand(-1, length - 2).flatten()[keep]
    return _HeadMatch.apply(head, target, tau, weights[:, keep], *flat)  # type: ignore[no-any-return]


@torch.no_grad()
def accept_lengths(module: NextN, base: Base, head: Tensor, ids: Tensor, batch: Batch) -> list[float]:
    """Mean number of tokens that a greedy step would commit with 1, 2, ... drafts, bonus included, over all
    positions of the answers."""
    outs = module(batch.hidden, base.embedding[batch.tokens], DEPTH)
    length = batch.tokens.shape[1]
    at = torch.arange(length - 1 - DEPTH, device=head.device)  # positions of the root's hidden state
    own = (at[None] + 1 >= batch.starts[:, None]) & (at[None] + 1 + DEPTH < batch.ends[:, None])
    held = torch.ones_like(own)
    wanted = F.linear(batch.hidden, base.head).argmax(-1)
    found, total = [], 1.0
    for d in range(DEPTH):
        guesses = ids[F.linear(outs[d][:, d : d + len(at)], head).argmax(-1)]
        held = held & (guesses == wanted[:, d + 1 : d + 1 + len(at)])
        total += float((held & own).sum() / own.sum().clamp(min=1))
        found.append(total)
    return found


def schedule(done: float) -> float:
    """Learning rate factor at the share `done` of the run."""
    if done < DECAY_FROM:
        return min(1.0, 0.05 + done / 0.02)
    return max(0.0, (1.0 - done) / (1.0 - DECAY_FROM)) * 0.98 + 0.02


def train(
    base: Base, texts: Sequence[Text], states: Tensor, work: Path, budget: Budget
) -> tuple[NextN, list[int]]:
    """Trains; returns (the module, its draft vocabulary). Raises ValueError if there are too few texts."""
    if len(texts) < 2 * HELD_OUT:
        raise ValueError(f"{len(texts)} texts are too few to train on; give more --minutes or --tokens")
    torch.manual_seed(budget.seed)
    module = NextN(base.config)
    module.begin_at(base.layer, base.norm)
    module.to(base.device)
    tokens = vocabulary(texts, budget.vocabulary, len(base.head))
    ids = torch.tensor(tokens, device=base.device)
    head, corpus = base.head[ids], Corpus(texts, states, base.device)
    held_out = corpus.batch(range(HELD_OUT))
    trained = [p for p in module.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": 0.01},
        {"params": [p for p in trained if p.ndim == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=(0.9, 0.97))
    step, elapsed = _resume(work, module, optimizer)
    bar = tqdm(total=round(budget.seconds), initial=round(elapsed), unit="s", desc="training", mininterval=5)
    source, saved = corpus.batches(budget.seed + step), time.monotonic()
    logged = elapsed
    with (work / "log.jsonl").open("a") as log:
        while elapsed < budget.seconds:
            began = time.monotonic()
            for group in optimizer.param_groups:
                group["lr"] = LEARNING_RATE * schedule(elapsed / budget.seconds)
            depth = DEPTH if elapsed >= UNROLL_FROM * budget.seconds else 1
            loss = losses(module, base, head, next(source), depth)
            (loss * torch.tensor(DEPTH_WEIGHTS[:depth], device=loss.device)).sum().backward()
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            step += 1
            elapsed += time.monotonic() - began
            if elapsed - logged >= LOG_SECONDS or elapsed >= budget.seconds:
                logged = elapsed
                lengths = accept_lengths(module, base, head, ids, held_out)
                row: dict[str, Any] = {"step": step, "seconds": round(elapsed, 1), "loss": loss.tolist()}
                log.write(json.dumps(row | {"accept_lengths": lengths}) + "\n")
                log.flush()
                bar.set_postfix_str(
                    f"loss {row['loss'][0]:.2f}, accept length {lengths[1]:.2f}", refresh=False
                )
            bar.update(round(elapsed) - bar.n)
            if time.monotonic() - saved > SAVE_SECONDS or elapsed >= budget.seconds:
                _save(work, module, optimizer, step, elapsed)
                saved = time.monotonic()
    bar.close()
    return module, tokens


def _save(work: Path, module: NextN, optimizer: torch.optim.Optimizer, step: int, elapsed: float) -> None:
    state = {
        "module": module.state_dict(),
        "optimizer": optimizer.state_dict(),
        "step": step,
        "elapsed": elapsed,
    }
    part = work / "training.part"
    torch.save(state, part)
    part.replace(work / "training.pt")


def _resume(work: Path, module: NextN, optimizer: torch.optim.Optimizer) -> tuple[int, float]:
    """Loads the last checkpoint, if there is one. Returns (steps, seconds) of the run so far."""
    path = work / "training.pt"
    if not path.exists():
        return 0, 0.0
    state = torch.load(path, weights_only=True)
    module.load_state_dict(state["module"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"]), float(state["elapsed"])
