"""Counts the tokens of a corpus to choose a draft vocabulary for FR-Spec (arXiv 2502.14856)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from nextn.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class FrequentTokens:
    ids: list[int]  # ascending
    tokens: int  # number of tokens in the corpus
    covered: float  # share of the corpus's tokens that are in `ids`


def frequent_tokens(tokenizer: Tokenizer, texts: Iterable[str], size: int) -> FrequentTokens:
    """Returns the `size` most frequent tokens of the texts; among equally frequent ones, those with smaller
    ids. The end token is always included: without it, every draft at the end of a text would be wrong.

    Raises ValueError if the texts have no tokens, or if `size` is below 2.
    """
    if size < 2:
        raise ValueError(f"a draft vocabulary of {size} tokens is too small; give at least 2")
    counts: Counter[int] = Counter()
    for text in texts:
        counts.update(tokenizer.encode(text, add_special_tokens=False))
    total = counts.total()
    if not total:
        raise ValueError("the corpus has no tokens")
    end = tokenizer.eos_token_id
    ranked = sorted((token for token in counts if token != end), key=lambda token: (-counts[token], token))
    chosen = ranked[: size if end is None else size - 1] + ([] if end is None else [end])
    return FrequentTokens(sorted(chosen), total, sum(counts[token] for token in chosen) / total)
