"""The work of every engine: the same prompts, as token ids, in the same sizes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from nextn.bench.prompts import all_heldout_prompts
from nextn.tokenizer.tokenizer import Tokenizer

PREFILL_TOKENS = 512
LONG_TOKENS = 2048  # tokens of a prompt that consists of four others
PROMPT_TOKENS = 32  # tokens of a prompt in cases that measure decoding


@dataclass(frozen=True)
class Case:
    """One measurement. calls: batches of prompts, one after another. max_tokens: if it is 1, the time of the
    prompts is measured; otherwise the time after the first token."""

    name: str
    calls: tuple[tuple[tuple[int, ...], ...], ...]
    max_tokens: int

    @property
    def prefill(self) -> bool:
        return self.max_tokens == 1

    @property
    def prompt_tokens(self) -> int:
        """Number of tokens of each of its prompts."""
        return len(self.calls[0][0])


def cases(pool: Sequence[Sequence[int]], quick: bool, context: int) -> list[Case]:
    """Makes the cases from prompts of PREFILL_TOKENS tokens. Shorter prompts are their first tokens; longer
    prompts are several of them joined. context: the model's context; cases that do not fit are left out."""
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
    """Prompts of held-out Python code. A text that is too short continues with the next ones."""
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
    """Random prompts: `bos`, and then ids of at least `special`."""
    draw = random.Random(seed)
    return [
        [bos, *(draw.randrange(special, vocab_size) for _ in range(PREFILL_TOKENS - 1))] for _ in range(count)
    ]
