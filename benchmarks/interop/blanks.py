"""A logit bias without which the embedded model, trained on Python, fills JSON with lines of blanks, as JSON
allows. Standard library only: it also runs in the tools' own environments."""

from __future__ import annotations

import json
from pathlib import Path


def no_blanks(tokenizer: str | Path) -> dict[str, int]:
    """Token ids of nothing but blanks, as byte-level BPE spells them."""
    vocabulary = json.loads((Path(tokenizer) / "tokenizer.json").read_text(encoding="utf-8"))["model"][
        "vocab"
    ]
    return {str(number): -100 for text, number in vocabulary.items() if not text.strip("ĠĊčĉ")}
