"""A logit bias against blank tokens. Without it the embedded model, trained on Python, fills JSON with blank
lines, which JSON allows. Uses only the standard library, because it also runs in the tools' environments."""

from __future__ import annotations

import json
from pathlib import Path


def no_blanks(tokenizer: str | Path) -> dict[str, int]:
    """A logit bias of -100 for every token of only blanks, as byte-level BPE spells them."""
    vocabulary = json.loads((Path(tokenizer) / "tokenizer.json").read_text(encoding="utf-8"))["model"][
        "vocab"
    ]
    return {str(number): -100 for text, number in vocabulary.items() if not text.strip("ĠĊčĉ")}
