"""Rollouts: the model's own continuations of training text, on which the second stage trains it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from generate import generate, gumbel
from model import Tiny
from tokenizers import Tokenizer
from torch import Tensor
from train import MIX

SHORTEST = 48


@dataclass(frozen=True)
class Rollouts:
    """Right-padded sequences: BOS, prompt, completion.

    tokens [N, L] int16. hidden [N, L, C] bf16: the trunk's states after its final norm; not set for a
    sequence's last token and padding. starts [N]: lengths of the prompts. ends [N]: lengths of the sequences.
    greedy [N] bool.
    """

    tokens: Tensor
    hidden: Tensor
    starts: Tensor
    ends: Tensor
    greedy: Tensor

    def select(self, rows: Tensor) -> Rollouts:
        return Rollouts(
            self.tokens[rows], self.hidden[rows], self.starts[rows], self.ends[rows], self.greedy[rows]
        )


def join(parts: list[Rollouts]) -> Rollouts:
    longest = max(p.tokens.shape[1] for p in parts)
    return Rollouts(
        torch.cat([F.pad(p.tokens, (0, longest - p.tokens.shape[1])) for p in parts]),
        torch.cat([F.pad(p.hidden, (0, 0, 0, longest - p.hidden.shape[1])) for p in parts]),
        torch.cat([p.starts for p in parts]),
        torch.cat([p.ends for p in parts]),
        torch.cat([p.greedy for p in parts]),
    )


class Prompts:
    """Random pieces of the training streams that begin and end at a line's end."""

    def __init__(self, tok: Tokenizer, streams: dict[str, Tensor], seed: int) -> None:
        vocab = tok.get_vocab_size()
        ends = [tok.decode([i], skip_special_tokens=False).endswith("\n") for i in range(vocab)]
        self.newline = torch.tensor(ends)
        self.streams = {k: streams[k] for k in MIX}
        self.gen = torch.Generator().manual_seed(seed)

    def take(self, count: int, longest: int) -> list[list[int]]:
        weights = torch.tensor(list(MIX.values()))
        out: list[list[int]] = []
        while len(out) < count:
            stream = self.streams[list(MIX)[int(torch.multinomial(weights, 1, generator=self.gen))]]
            at = int(torch.randint(0, stream.numel() - 2 * longest, (1,), generator=self.gen))
            piece = stream[at : at + longest].long()
            breaks = self.newline[piece].nonzero()[:, 0]
            if len(breaks) < 2 or (piece == 1).any():
                continue
            first, last = int(breaks[0]) + 1, int(breaks[-1]) + 1
            if last - first >= SHORTEST:
                out.append([0, *piece[first:last].tolist()])
        return out


def roll_out(model: Tiny, prompts: list[list[int]], new: int, temperature: float, seed: int) -> Rollouts:
    """Continues the prompts by `new` tokens. `model`: a result of `generate.frozen`."""
    noise = gumbel(seed, len(prompts), model.cfg.vocab_size) if temperature else None
    hidden: list[Tensor] = []
    completions = generate(model, prompts, new, temperature, noise, hidden)
    starts = torch.tensor([len(p) for p in prompts])
    tokens = torch.zeros(len(prompts), int(starts.max()) + new, dtype=torch.int16)
    for row, prompt, done in zip(tokens, prompts, completions, strict=True):
        row[: len(prompt) + new] = torch.cat((torch.tensor(prompt), done))
    greedy = torch.full((len(prompts),), temperature == 0.0)
    return Rollouts(tokens, hidden[0], starts, starts + new, greedy)
