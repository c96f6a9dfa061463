"""Lists a tokenizer's steps before and after BPE, as its tokenizer.json describes them."""

from __future__ import annotations

import json
from typing import Any

import tokenizers


def normalizers(backend: tokenizers.Tokenizer) -> list[dict[str, Any]]:
    """The normalizers in the order in which they run. In DeepSeek's files there are none."""
    return flat(backend.normalizer, "normalizers")


def pre_tokenizers(backend: tokenizers.Tokenizer) -> list[dict[str, Any]]:
    return flat(backend.pre_tokenizer, "pretokenizers")


def flat(part: Any, inside: str) -> list[dict[str, Any]]:
    """Returns the steps of a part in order, with nested sequences flattened. inside: the key of a sequence's
    steps."""
    if part is None:
        return []

    def resolved(described: dict[str, Any]) -> list[dict[str, Any]]:
        if described["type"] != "Sequence":
            return [described]
        return [each for one in described[inside] for each in resolved(one)]

    return resolved(json.loads(part.__getstate__()))
