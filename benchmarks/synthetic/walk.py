"""Weights of a model whose greedy text follows a fixed permutation of tokens, with a chosen acceptance rate.

    next(t)        one cycle over all ordinary tokens, in an order drawn from the seed
    embedding[t]   normal(0, 1), and if t is a "miss", a marker in one of a few reserved columns
    head[next(t)]  embedding[t] without the markers, scaled

A decoder layer reads as many bytes as in a trained model, but its output is small. So after all layers the
residual stream is still nearly the last token's embedding, and the head finds the next token. The NextN
layer's eh_proj passes the embedding through, so its draft is right. But it turns a marker into the embedding
of a wrong token, four times as large. The misses are a share 1 - acceptance of the ordinary tokens, drawn at
random. So every draft, at any depth of a chain, is right with that probability, in any number format.
"""

from __future__ import annotations

import zlib
from functools import cached_property

import torch
from torch import Tensor

from nextn.families.config import ModelConfig

MARKER = 8.0  # value in a miss's reserved column; other columns have a standard deviation of 1
WRONG = 4.0  # factor of the wrong token's embedding in a miss's draft; the right one has factor 1
DISTURBANCE = 0.1  # sum that all layers add to the residual stream, relative to the embedding
TOP_LOGIT = 32.0  # the next token's logit; the others have a standard deviation of TOP_LOGIT / sqrt(hidden)


class Walk:
    """The tokens' order, and every weight of the checkpoint by name. Weights depend only on seed, name and
    shape."""

    def __init__(self, cfg: ModelConfig, special: int, acceptance: float, seed: int) -> None:
        """special: ids 0 .. special - 1 are never generated. Raises ValueError for an acceptance outside
        [0, 1], and for sizes that are too small to distinguish tokens."""
        if not 0.0 <= acceptance <= 1.0:
            raise ValueError(f"--acceptance is {acceptance}; it must be between 0 and 1")
        if cfg.hidden_size < 64:
            raise ValueError(
                f"--hidden-size is {cfg.hidden_size}; it must be at least 64 to tell tokens apart"
            )
        if cfg.vocab_size < 2 * special + 16:
            raise ValueError(
                f"--vocab-size is {cfg.vocab_size}; with {special} special tokens it must be at least "
                f"{2 * special + 16}"
            )
        self.cfg, self.special, self.seed = cfg, special, seed
        gen = self._generator("the walk")
        count = cfg.vocab_size - special
        order = torch.randperm(count, generator=gen) + special
        self.next = torch.empty(cfg.vocab_size, dtype=torch.long)
        self.next[order] = order.roll(-1)
        # A special token has the same successor and embedding as an ordinary token, its twin.
        self.twin = torch.arange(cfg.vocab_size)
        self.twin[:special] += special
        self.next[:special] = self.next[self.twin[:special]]
        misses = torch.randperm(count, generator=gen)[: round((1 - acceptance) * count)] + special
        self.columns = max(2, min(16, cfg.hidden_size // 32))  # the last ones are reserved for markers
        self.wrong = torch.randperm(count, generator=gen)[: self.columns] + special
        column = torch.randint(self.columns, (len(misses),), generator=gen)
        column = torch.where(self.wrong[column] == misses, (column + 1) % self.columns, column)
        self.marker = torch.full((cfg.vocab_size,), -1)  # the reserved column of a miss
        self.marker[misses] = column
        self.marker[:special] = self.marker[self.twin[:special]]

    def drafted(self, token: int) -> bool:
        """Whether the draft of the token after `token` is right."""
        return bool(self.marker[token] < 0)

    def text(self, last: int, length: int) -> list[int]:
        """The greedy continuation of any prompt that ends in `last`."""
        tokens: list[int] = []
        for _ in range(length):
            last = int(self.next[last])
            tokens.append(last)
        return tokens

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """One tensor of the checkpoint: bf16; the routers' correction biases are f32, as in DeepSeek's
        files."""
        if name.endswith("embed_tokens.weight"):
            return self._embedding
        if name.endswith(("lm_head.weight", "shared_head.head.weight")):
            return self._head()
        if name.endswith("eh_proj.weight"):
            return self._eh_proj(name)
        if name.endswith("e_score_correction_bias"):
            return 0.01 * torch.randn(shape, generator=self._generator(name))
        if len(shape) == 1:
            return torch.ones(shape, dtype=torch.bfloat16)
        std = shape[-1] ** -0.5
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            std *= DISTURBANCE * (2 * self.cfg.num_hidden_layers) ** -0.5
        return torch.randn(shape, generator=self._generator(name)).mul_(std).bfloat16()

    @cached_property
    def _embedding(self) -> Tensor:
        cfg = self.cfg
        table = torch.randn(
            cfg.vocab_size, cfg.hidden_size, generator=self._generator("embedding")
        ).bfloat16()
        table[:, -self.columns :] = 0.0
        missed = (self.marker >= 0).nonzero()[:, 0]
        table[missed, cfg.hidden_size - self.columns + self.marker[missed]] = MARKER
        table[: self.special] = table[self.twin[: self.special]]
        return table

    def _head(self) -> Tensor:
        cfg = self.cfg
        head = torch.zeros(cfg.vocab_size, cfg.hidden_size, dtype=torch.bfloat16)
        scale = TOP_LOGIT / cfg.hidden_size
        head[self.next[self.special :]] = self._embedding[self.special :] * scale
        head[:, -self.columns :] = 0.0
        return head

    def _eh_proj(self, name: str) -> Tensor:
        """[hidden, 2 * hidden], the embedding's part first. The hidden state has only small weights."""
        size = self.cfg.hidden_size
        std = DISTURBANCE * size**-0.5
        weight = torch.randn(size, 2 * size, generator=self._generator(name)).mul_(std)
        weight[:, :size] += torch.eye(size)
        wrong = self._embedding[self.wrong].float()  # [columns, hidden]
        wrong[:, -self.columns :] = 0.0
        weight[:, size - self.columns : size] = WRONG / MARKER * wrong.t()
        return weight.bfloat16()

    def _generator(self, name: str) -> torch.Generator:
        # torch's CPU generator uses only the lower 32 bits of a seed.
        return torch.Generator().manual_seed(zlib.crc32(f"{self.seed} {name}".encode()))
