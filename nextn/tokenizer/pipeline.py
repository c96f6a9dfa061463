"""The steps of a tokenizer before and after BPE, as its tokenizer.json describes them."""

from __future__ import annotations

import json
from typing import Any

import tokenizers


def normalizers(backend: tokenizers.Tokenizer) -> list[dict[str, Any]]:
    """The normalizers in the order in which they run. In DeepSeek's files the list is empty."""
    return flat(backend.normalizer, "normalizers")


def pre_tokenizers(backend: tokenizers.Tokenizer) -> list[dict[str, Any]]:
    return flat(backend.pre_tokenizer, "pretokenizers")


def flat(part: Any, inside: str) -> list[dict[str, Any]]:
    """A part and the parts in it, sequences resolved."""
    if part is None:
        return []

    def resolved(described: dict[str, Any]) -> list[dict[str, Any]]:
        if described["type"] != "Sequence":
            return [described]
        return [each for one in described[inside] for each in resolved(one)]

    return resolved(json.loads(part.__getstate__()))
