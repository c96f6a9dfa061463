"""Converts the tokenizer of a GGUF file to tokenizer.json and tokenizer_config.json.

    tokens, types    text and kind of each id: plain, control, defined by the user, unused
    merges           for byte-level BPE (model gpt2), by rank
    scores           for SentencePiece (model llama): see `nextn.gguf.sentencepiece`

Byte-level tokens have the same spelling in tokenizer.json, so they are copied unchanged.
"""

from __future__ import annotations

from typing import Any

from nextn.checkpoint_error import CheckpointError
from nextn.gguf.metadata import Metadata
from nextn.gguf.pretokenizers import PRE_TOKENIZERS
from nextn.gguf.sentencepiece import sentencepiece

PLAIN, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
NO_TOKENIZER = ("none", "no_vocab")
# Control tokens that end an answer. A file names only one of them; llama.cpp looks for these texts too.
ENDS = {
    "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>",
    "<EOT>", "_<EOT>", "[EOT]", "<｜end▁of▁sentence｜>", "<|user|>", "<|observation|>",
}  # fmt: skip


def tokenizer_files(meta: Metadata) -> dict[str, dict[str, Any]]:
    """The contents of tokenizer.json, tokenizer_config.json, and generation_config.json with all tokens that
    end an answer, by file name. Raises CheckpointError if the tokenizer is missing, invalid or not
    supported."""
    kind = meta.string("tokenizer.ggml.model")
    if kind not in ("gpt2", "llama"):
        rule = "the file has no tokenizer" if kind in NO_TOKENIZER else "supported are gpt2 and llama"
        raise meta.error("tokenizer.ggml.model", rule)
    tokens = meta.array("tokenizer.ggml.tokens", str)
    types = _types(meta, tokens)
    _no_duplicates(meta, tokens)
    while types and types[-1] == UNUSED:  # padding of the vocabulary to the model's size
        types.pop()
    used = tokens[: len(types)]
    special = _special(meta, used)
    if kind == "gpt2":
        made, bos = _byte_level(meta, used)
    else:
        made, bos = sentencepiece(meta, used, types), True
    added = [i for i, t in enumerate(types) if t in (CONTROL, USER_DEFINED, UNKNOWN)]
    whole = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added(i, used[i], types[i] != USER_DEFINED) for i in added],
        "post_processor": None,
        **made,
    }
    config: dict[str, Any] = {
        "add_bos_token": meta.boolean("tokenizer.ggml.add_bos_token", bos) and "bos_token" in special,
        "add_eos_token": False,
        "clean_up_tokenization_spaces": False,
        "tokenizer_class": "PreTrainedTokenizerFast",
        **special,
    }
    if meta.boolean("tokenizer.ggml.add_eos_token", False):
        raise meta.error(
            "tokenizer.ggml.add_eos_token", "an end token after each text is not supported; it must be false"
        )
    template = _chat_template(meta)
    if template is not None:
        config["chat_template"] = template
    return {
        "tokenizer.json": whole,
        "tokenizer_config.json": config,
        "generation_config.json": {"eos_token_id": _ends(meta, used, types)},
    }


def _types(meta: Metadata, tokens: list[str]) -> list[int]:
    types = list(meta.array("tokenizer.ggml.token_type", int, [PLAIN] * len(tokens)))
    if len(types) != len(tokens):
        raise CheckpointError(
            f"{meta.path}: key 'tokenizer.ggml.token_type' has {len(types)} values, for {len(tokens)} tokens"
        )
    return types


def _no_duplicates(meta: Metadata, tokens: list[str]) -> None:
    if len(set(tokens)) == len(tokens):
        return
    seen: dict[str, int] = {}
    for i, token in enumerate(tokens):
        if token in seen:
            raise CheckpointError(
                f"{meta.path}: key 'tokenizer.ggml.tokens': tokens {seen[token]} and {i} are both {token!r}"
            )
        seen[token] = i


def _special(meta: Metadata, tokens: list[str]) -> dict[str, str]:
    """The texts of the special tokens: bos_token, eos_token, unk_token, pad_token, as far as the file has
    them."""
    names = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}
    found: dict[str, str] = {}
    for theirs, ours in names.items():
        number = meta.integer(f"tokenizer.ggml.{theirs}_token_id", None)
        if number is None:
            continue
        if number >= len(tokens):
            if ours in ("unk", "pad"):
                continue  # nextn does not need them
            raise meta.error(
                f"tokenizer.ggml.{theirs}_token_id", f"it must be below the number of tokens, {len(tokens)}"
            )
        found[f"{ours}_token"] = tokens[number]
    return found


def _byte_level(meta: Metadata, tokens: list[str]) -> tuple[dict[str, Any], bool]:
    """(normalizer, pre_tokenizer, decoder and model of tokenizer.json; whether texts begin with BOS if the
    file does not say)."""
    name = meta.string("tokenizer.ggml.pre", "default")
    if name not in PRE_TOKENIZERS:
        raise meta.error(
            "tokenizer.ggml.pre",
            f"nextn does not support this pre-tokenizer; supported are {', '.join(PRE_TOKENIZERS)}",
        )
    pre, known = PRE_TOKENIZERS[name], set(tokens)
    merges = []
    for i, merge in enumerate(meta.array("tokenizer.ggml.merges", str)):
        at = merge.find(" ", 1)  # a token may begin with a space
        first, second = merge[:at], merge[at + 1 :]
        if at < 0 or not {first, second, first + second} <= known:
            raise CheckpointError(
                f"{meta.path}: key 'tokenizer.ggml.merges': merge {i} is {merge!r}; its two parts, and their "
                "concatenation, must be tokens"
            )
        merges.append([first, second])
    return {
        "normalizer": None,
        "pre_tokenizer": pre.json(),
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": pre.whole,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": merges,
        },
    }, pre.bos


def _added(number: int, text: str, special: bool) -> dict[str, Any]:
    return {
        "id": number,
        "content": text,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": special,
    }


def _ends(meta: Metadata, tokens: list[str], types: list[int]) -> list[int]:
    named = (meta.integer(f"tokenizer.ggml.{name}_token_id", None) for name in ("eos", "eot", "eom"))
    found = [i for i in named if i is not None and i < len(tokens)]
    if not found:
        return found
    return found + [i for i, t in enumerate(types) if t == CONTROL and tokens[i] in ENDS and i not in found]


def _chat_template(meta: Metadata) -> str | list[dict[str, str]] | None:
    """The chat template; a list with names if the file has several; None if it has none."""
    key = "tokenizer.chat_template"
    template = meta.string(key, None)
    names = meta.array("tokenizer.chat_templates", str, [])
    if not names:
        return template  # type: ignore[no-any-return]
    found = [] if template is None else [{"name": "default", "template": template}]
    return found + [{"name": name, "template": meta.string(f"{key}.{name}")} for name in names]
