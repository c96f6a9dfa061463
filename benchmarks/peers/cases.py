"""The work that every engine is given: the same prompts, as token ids, in the same sizes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from nextn.bench.prompts import all_heldout_prompts
from nextn.tokenizer.tokenizer import Tokenizer

PREFILL_TOKENS = 512
LONG_TOKENS = 2048  # of a prompt made of four others
PROMPT_TOKENS = 32  # of a prompt whose continuation is measured


@dataclass(frozen=True)
class Case:
    """calls: one after another; each is a batch of prompts. max_tokens 1: only the prompts' own time is
    measured; else the time beyond the first token is."""

    name: str
    calls: tuple[tuple[tuple[int, ...], ...], ...]
    max_tokens: int

    @property
    def prefill(self) -> bool:
        return self.max_tokens == 1

    @property
    def prompt_tokens(self) -> int:
        """Of each of its prompts."""
        return len(self.calls[0][0])


def cases(pool: Sequence[Sequence[int]], quick: bool, context: int) -> list[Case]:
    """From prompts of PREFILL_TOKENS tokens each: the first tokens of them are the shorter prompts, some in a
    row the longer ones. context: of the model; cases that do not fit are left out."""
    whole = [tuple(prompt[:PREFILL_TOKENS]) for prompt in pool]
    short = [tuple(prompt[:PROMPT_TOKENS]) for prompt in pool]
    parts = LONG_TOKENS // PREFILL_TOKENS
    long = [sum(whole[i : i + parts], ()) for i in range(0, len(whole), parts)]
    singles, tokens = (2, (32, 16, 8)) if quick else (4, (128, 64, 64))
    found = [
        Case("prefill", tuple((p,) for p in whole[:singles]), 1),
        Case("prefill2048", tuple((p,) for p in long[: singles // 2]), 1),
        Case("single", tuple((p,) for p in short[:singles]), tokens[0]),
        Case("batch8", (tuple(short[:8]),), tokens[1]),
        Case("batch32", (tuple(short[:32]),), tokens[2]),
    ]
    return [case for case in found if case.prompt_tokens + case.max_tokens <= context]


def code_prompts(tokenizer: Tokenizer, count: int = 32) -> list[list[int]]:
    """Held-out Python code. A prompt that is too short goes on with the next ones."""
    texts = all_heldout_prompts()
    found: list[list[int]] = []
    for i in range(count):
        ids: list[int] = []
        more = i
        while len(ids) < PREFILL_TOKENS:
            ids = tokenizer.encode("".join(texts[j % len(texts)] for j in range(i, more + 1)))
            more += 1
        found.append(ids[:PREFILL_TOKENS])
    return found


def random_prompts(
    vocab_size: int, bos: int, special: int, count: int = 32, seed: int = 0
) -> list[list[int]]:
    """`bos`, then ids from `special` on."""
    draw = random.Random(seed)
    return [
        [bos, *(draw.randrange(special, vocab_size) for _ in range(PREFILL_TOKENS - 1))] for _ in range(count)
    ]
