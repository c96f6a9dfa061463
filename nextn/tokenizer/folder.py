"""Reads the tokenizer's files in a checkpoint folder. Every error is a ValueError that names the file."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import tokenizers
from tokenizers import processors

from nextn.config import hub_hint
from nextn.tokenizer.chat import ChatTemplate
from nextn.tokenizer.pipeline import flat
from nextn.tokenizer.spelling import spelling_of

CONFIG = "tokenizer_config.json"
TOKENIZER = "tokenizer.json"
LARGEST = 500_000_000  # bytes of a file; the largest vocabularies have 40 million


def existing(path: str | os.PathLike[str]) -> Path:
    root = Path(path)
    if not root.exists():
        raise ValueError(f"{root}: there is no such folder{hub_hint(str(path))}")
    return root


def read_backend(folder: Path) -> tokenizers.Tokenizer:
    file = folder / TOKENIZER
    if not file.is_file():
        raise ValueError(
            f"{folder} has no tokenizer.json; save one there with the tokenizer's save_pretrained"
        )
    check_size(file)
    try:
        backend = tokenizers.Tokenizer.from_file(str(file))
    # The library raises plain Exception for every error.
    except Exception as e:
        raise ValueError(f"{file} cannot be read as a tokenizer: {e}") from e
    if spelling_of(backend) is None:
        kinds = ", ".join(part["type"] for part in flat(backend.decoder, "decoders")) or "none"
        raise ValueError(
            f"{file} has the decoder {kinds}; supported are byte-level BPE (decoder ByteLevel) and "
            "SentencePiece's BPE (Replace, ByteFallback, Fuse, Strip)"
        )
    # Some tokenizers are saved with these settings, which would silently shorten or lengthen prompts.
    backend.no_truncation()
    backend.no_padding()
    return backend


def check_size(file: Path) -> None:
    size = file.stat().st_size
    if size > LARGEST:
        raise ValueError(f"{file} has {size} bytes; {LARGEST} is the most that is read")


def read_text(file: Path) -> str:
    try:
        check_size(file)
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise ValueError(f"{file} cannot be read: {e}") from e


def read_config(file: Path) -> dict[str, object]:
    if not file.is_file():
        return {}
    text = read_text(file)
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as e:  # ValueError also for a number with too many digits
        raise ValueError(f"{file} cannot be read as JSON: {e}") from e
    if not isinstance(config, dict):
        raise ValueError(f"{file} must hold a JSON object")
    return config


def read_special_tokens(config: Mapping[str, object], file: Path) -> dict[str, str]:
    """Returns every `<name>_token` that is set: a string, or an object with its `content`."""
    tokens: dict[str, str] = {}
    for name, value in config.items():
        if not name.endswith("_token") or value is None or isinstance(value, bool):
            continue
        content = value.get("content") if isinstance(value, dict) else value
        if not isinstance(content, str):
            raise ValueError(f"{file}: {name} must be a string or an object with a content, not {value!r}")
        tokens[name] = content
    return tokens


def add_bos(
    backend: tokenizers.Tokenizer, config: Mapping[str, object], special_tokens: Mapping[str, str], file: Path
) -> None:
    """Makes `encode` add BOS if the config says so and tokenizer.json does not do it already.

    DeepSeek's own files need this. If a post-processor adds BOS, it does so whatever the config says, as in
    transformers 5.
    """
    token = special_tokens.get("bos_token")
    if config.get("add_bos_token") is not True or token is None:
        return
    token_id = backend.token_to_id(token)
    if token_id is None:
        raise ValueError(f"{file} adds the bos_token {token!r}, which tokenizer.json does not have")
    if backend.encode("").ids[:1] == [token_id]:
        return
    backend.post_processor = processors.TemplateProcessing(
        single=[token, "$A"], special_tokens=[(token, token_id)]
    )


def read_chat_template(
    folder: Path, config: Mapping[str, object], special_tokens: Mapping[str, str], other: Path | None = None
) -> ChatTemplate | None:
    """Reads chat_template.jinja, or else `chat_template` of the config: a string or a list of named
    templates. `other`: a file to read instead."""
    file = other or folder / "chat_template.jinja"
    if other is not None or file.is_file():
        sources = {"default": read_text(file)}
    else:
        file = folder / CONFIG
        found = config.get("chat_template")
        if found is None:
            return None
        sources = named_templates(found, file)
    try:
        return ChatTemplate(sources, special_tokens)
    except ValueError as e:
        raise ValueError(f"{file}: {e}") from e


def named_templates(found: object, file: Path) -> dict[str, str]:
    if isinstance(found, str):
        return {"default": found}
    sources: dict[str, str] = {}
    for entry in found if isinstance(found, list) else [found]:
        fields = entry if isinstance(entry, dict) else {}
        name, template = fields.get("name"), fields.get("template")
        if not isinstance(name, str) or not isinstance(template, str):
            raise ValueError(f"{file}: chat_template must be a string or a list of {{name, template}}")
        sources[name] = template
    return sources
