"""Makes a byte-level BPE tokenizer of any size from the embedded model's, with fewer or with more merges."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nextn.config import EMBEDDED, model_folder

LONGEST = 24  # maximum characters of a new token


def embedded_folder() -> Path:
    return model_folder(EMBEDDED)


def tokenizer_json(vocab_size: int) -> tuple[dict[str, Any], int]:
    """Returns (tokenizer.json, number of special tokens, which come first). Every id below vocab_size is a
    token.

    Raises ValueError if vocab_size is too small for the special tokens and the 256 bytes, or larger than the
    tokens that can be made.
    """
    found: dict[str, Any] = json.loads((embedded_folder() / "tokenizer.json").read_text(encoding="utf-8"))
    model = found["model"]
    merges: list[list[str]] = model["merges"]
    special = len(found["added_tokens"])
    alphabet = len(model["vocab"]) - len(merges)
    if vocab_size < alphabet:
        raise ValueError(
            f"--vocab-size is {vocab_size}; {special} special tokens and 256 bytes need {alphabet}"
        )
    # In this tokenizer ids are in the order of training: special tokens, bytes, then one for each merge.
    model["merges"] = merges[: vocab_size - alphabet]
    model["vocab"] = {token: i for token, i in model["vocab"].items() if i < vocab_size}
    for pair in _new_pairs(model["vocab"], special):
        if len(model["vocab"]) == vocab_size:
            return found, special
        model["vocab"]["".join(pair)] = len(model["vocab"])
        model["merges"].append(list(pair))
    raise ValueError(
        f"--vocab-size is {vocab_size}; there are {len(model['vocab'])} tokens to be made at most"
    )


def _new_pairs(vocab: dict[str, int], special: int) -> Iterator[tuple[str, str]]:
    """Yields pairs of tokens whose concatenation is not a token yet. `vocab` can grow in the meantime."""
    tokens = sorted(vocab, key=lambda token: vocab[token])[special:]
    for first in tokens:
        for second in tokens:
            if len(first) + len(second) <= LONGEST and first + second not in vocab:
                yield first, second
    # There are no more pairs; the caller then raises ValueError.
    return
