"""Converts SentencePiece's BPE with scores, the tokenizer of Llama 2 and Mistral, to tokenizer.json.

llama.cpp repeatedly merges the two neighbours whose merged token has the highest score. tokenizer.json has a
list of merges by rank. So the list has all pairs of tokens whose concatenation is a token, in the order of
that token's score; transformers converts such tokenizers in the same way. Characters that are not tokens
become bytes, <0x00> to <0xFF>.
"""

from __future__ import annotations

from typing import Any

from nextn.checkpoint_error import CheckpointError
from nextn.gguf.metadata import Metadata

SPACE = "▁"
LONGEST = 128  # a pair's first token has fewer characters; real tokens have 16, or are runs of spaces
_PLAIN, _UNKNOWN = 1, 2


def sentencepiece(meta: Metadata, tokens: list[str], types: list[int]) -> dict[str, Any]:
    """The normalizer, pre_tokenizer, decoder and model of tokenizer.json. Raises CheckpointError if a token
    has no score."""
    scores = meta.array("tokenizer.ggml.scores", float)
    if len(scores) < len(tokens):
        raise CheckpointError(
            f"{meta.path}: key 'tokenizer.ggml.scores' has {len(scores)} values, for {len(tokens)} tokens"
        )
    unknown = next((t for t, kind in zip(tokens, types, strict=True) if kind == _UNKNOWN), None)
    prefix = meta.boolean("tokenizer.ggml.add_space_prefix", True)
    to_spaces = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
    decoders: list[dict[str, Any]] = [to_spaces, {"type": "ByteFallback"}, {"type": "Fuse"}]
    normalizers: list[dict[str, Any]] = [{"type": "Replace", "pattern": {"String": " "}, "content": SPACE}]
    if prefix:
        normalizers.insert(0, {"type": "Prepend", "prepend": SPACE})
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": unknown,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": merges(tokens, types, scores),
        },
    }


def merges(tokens: list[str], types: list[int], scores: list[float]) -> list[list[str]]:
    """The pairs of plain tokens whose concatenation is a plain token, the highest score first.

    >>> merges(["a", "b", "ab", "aba"], [1, 1, 1, 1], [-3.0, -4.0, -1.0, -2.0])
    [['a', 'b'], ['ab', 'a']]
    """
    plain = {t: i for i, t in enumerate(tokens) if types[i] == _PLAIN}
    found: list[tuple[float, int, int, list[str]]] = []
    for token, number in plain.items():
        for cut in range(1, min(len(token), LONGEST)):
            first, second = token[:cut], token[cut:]
            if first in plain and second in plain:
                found.append((-scores[number], -cut, number, [first, second]))
    return [pair for *_, pair in sorted(found)]
