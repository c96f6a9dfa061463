"""How byte-level BPE splits a text before it merges, by the value of tokenizer.ggml.pre.

The names are from llama.cpp (src/llama-vocab.cpp), the patterns from the tokenizer.json files of the models.
"""

from __future__ import annotations

from typing import Any, NamedTuple

_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+{end}|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*{end}|{digits}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_IDEOGRAPHS = "[一-龥\u0800-一가-\ud7ff]+"


class PreTokenizer(NamedTuple):
    """splits: patterns that are applied one after another; their matches become pieces. gpt2: GPT-2's pattern
    is applied after them. whole: a piece that is a token is not merged from smaller ones. bos: whether a BOS
    token is added if the file does not say."""

    splits: tuple[str, ...] = ()
    gpt2: bool = False
    whole: bool = False
    bos: bool = False

    def json(self) -> dict[str, Any]:
        """The value of `pre_tokenizer` in tokenizer.json."""
        steps: list[dict[str, Any]] = [
            {"type": "Split", "pattern": {"Regex": each}, "behavior": "Isolated", "invert": False}
            for each in self.splits
        ]
        last = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": self.gpt2}
        steps.append(last)
        return {"type": "Sequence", "pretokenizers": steps}


def _one(pattern: str, **more: bool) -> PreTokenizer:
    return PreTokenizer((pattern,), **more)


_GPT2 = PreTokenizer(gpt2=True)
_GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_DIGITS = PreTokenizer((r"\p{N}",), gpt2=True)
_LLAMA3 = rf"{_ENDINGS}|{_LETTERS}|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"{_ENDINGS}|{_LETTERS}|\p{{N}}|{_REST}"
_DEEPSEEK_V3 = PreTokenizer(
    (
        r"\p{N}{1,3}",
        "[一-龥\u3040-ゟ゠-ヿ]+",
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"""
        r""" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""",
    )
)
_TEKKEN = _CASED.replace("{end}", "").replace("{digits}", r"\p{N}")
_GPT4O = _CASED.replace("{end}", _ENDINGS + "?").replace("{digits}", r"\p{N}{1,3}")

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2_PATTERN, r"\p{N}+", "[0-9][0-9][0-9]")),
    "gpt-2": _GPT2, "phi-2": _GPT2, "gigachat": _GPT2, "mellum": _GPT2, "exaone4": _GPT2, "olmo": _GPT2,
    "smollm": _DIGITS, "starcoder": _DIGITS, "refact": _DIGITS, "command-r": _DIGITS, "codeshell": _DIGITS,
    "llama-bpe": _one(_LLAMA3, whole=True, bos=True), "llama3": _one(_LLAMA3, whole=True, bos=True),
    "llama-v3": _one(_LLAMA3, whole=True, bos=True), "falcon3": _one(_LLAMA3, whole=True, bos=True),
    "glm4": _one(_LLAMA3), "chatglm-bpe": _one(_LLAMA3), "smaug-bpe": _one(_LLAMA3), "dbrx": _one(_LLAMA3),
    "qwen2": _one(_QWEN2), "deepseek-r1-qwen": _one(_QWEN2), "megrez": _one(_QWEN2), "hunyuan": _one(_QWEN2),
    "qwen35": _one(
        _QWEN2.replace(_LETTERS, r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+").replace(
            r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]"
        )
    ),
    "deepseek-v3": _DEEPSEEK_V3, "hunyuan-dense": _DEEPSEEK_V3, "joyai-llm": _DEEPSEEK_V3,
    "deepseek-llm": PreTokenizer(
        (
            "[\r\n]", r"\s?[\p{Lu}\p{Ll}\p{Lt}]+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", _IDEOGRAPHS,
            r"\p{N}+",
        )
    ),
    "deepseek-coder": PreTokenizer(("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _IDEOGRAPHS, r"\p{N}")),
    "tekken": _one(_TEKKEN, whole=True, bos=True),
    "gpt-4o": _one(_GPT4O), "llama4": _one(_GPT4O), "kanana2": _one(_GPT4O),
}  # fmt: skip
