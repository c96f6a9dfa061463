"""Checks the inputs of `nextn.llm.LLM`: options by any of their names, prompts in vLLM's forms, chats.

The functions that check HTTP requests check them here too, so both give the same error messages. Here the
errors are ValueErrors.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import os
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nextn.config import EngineConfig
from nextn.other_engines import OFF, nothing, only, refused
from nextn.params_check import whole
from nextn.server.prompts.bound import check_vocabulary, token_limit
from nextn.server.prompts.chat import render
from nextn.server.protocol.body import parse_object, shortened
from nextn.server.protocol.chat import ChatMessages
from nextn.server.protocol.errors import ApiError, bad_request
from nextn.server.protocol.fields import MAX_STOP_STRINGS, one_or_more, prompts
from nextn.server_config import ServerConfig
from nextn.tokenizer.tokenizer import Tokenizer

DEFAULT_MAX_TOKENS = 128  # the default of SamplingParams
# Keywords that mean the opposite of an option.
OPPOSITES = {
    "enable_prefix_cache": "disable_radix_cache",
    "enable_prefix_caching": "disable_radix_cache",
    "constrained_json_disable_any_whitespace": "constrained_json_any_whitespace",
}


@contextlib.contextmanager
def value_errors() -> Iterator[None]:
    try:
        yield
    except ApiError as e:
        raise ValueError(str(e)) from e


def engine_config(options: Mapping[str, Any]) -> EngineConfig:
    """options: by the names of `EngineConfig` or their aliases on the command line. Raises ValueError for an
    unknown name, a value of the wrong type, or two names of one option."""
    fields = {field.name: field for field in dataclasses.fields(EngineConfig)}
    names = {keyword(name): field.name for field in fields.values() for name in field.metadata["aliases"]}
    names |= {name: name for name in fields}
    values: dict[str, Any] = {}
    came: dict[str, str] = {}
    for name, value in options.items():
        field = names.get(name) or OPPOSITES.get(name)
        if field is None:
            if not _asks_for_nothing(name, value):
                raise ValueError(_unknown(name, [*names, *OPPOSITES]))
            continue
        if field in came:
            raise ValueError(f"{came[field]} and {name} are the same option; leave one of them out")
        came[field] = name
        words = fields[field].metadata["words"]
        value = os.fspath(value) if isinstance(value, os.PathLike) else value
        given = words.get(value, value) if isinstance(value, str) else value
        _check_type(name, given, field)
        values[field] = given if name in names else not given
    return EngineConfig(**values)


def keyword(flag: str) -> str:
    """
    >>> keyword("--max-model-len")
    'max_model_len'
    """
    return flag.removeprefix("--").replace("-", "_")


def _asks_for_nothing(name: str, value: object) -> bool:
    """Whether another engine's option has a value without effect, such as tensor_parallel_size=1. False if no
    engine has the option. Raises ValueError if nextn does not support the value."""
    flag = f"--{name.replace('_', '-')}"
    said = "none" if value is None else str(value).lower()
    if flag in only():
        values, reason = only()[flag]
        fine = said in (*values, "none")
    elif nothing(flag) is not None:
        return True
    elif (found := refused(flag)) is not None:
        reason, _ = found
        fine = said in OFF
    else:
        return False
    if not fine:
        raise ValueError(f"{name}={value!r} is not supported: {reason}")
    return True


def _unknown(name: str, known: Sequence[str]) -> str:
    if name in {field.name for field in dataclasses.fields(ServerConfig)}:
        return f"{name} is an option of nextn serve; LLM has no server"
    close = difflib.get_close_matches(name, known, n=1)
    return f"unknown option {name!r}; " + (f"did you mean {close[0]!r}?" if close else "see docs/options.md")


def _check_type(name: str, value: object, field: str) -> None:
    hint = typing.get_type_hints(EngineConfig)[field]
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if float in kinds:
        kinds = (*kinds, int)
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        wanted = " or ".join("None" if kind is types.NoneType else kind.__name__ for kind in kinds)
        raise ValueError(f"{name} is {value!r}; it must be {wanted}")


def listed(given: object) -> list[str | list[int]]:
    """Returns a list of prompts from one or several. Each is text, token ids, or vLLM's {"prompt": text} or
    {"prompt_token_ids": ids}. Raises ValueError."""
    with value_errors():
        if isinstance(given, (str, Mapping)):
            given = [given]
        if not _is_list(given):
            return prompts(given)
        many = [_plain(each) for each in _items(given)]
        if all(isinstance(each, (str, list)) for each in many):
            return [prompts([each])[0] for each in many]  # texts and token ids may be mixed
        return prompts(many)


def _plain(given: object) -> object:
    if not isinstance(given, Mapping):
        return _items(given) if _is_list(given) else given
    fields = {name: value for name, value in given.items() if value is not None}
    unknown = sorted(fields.keys() - {"prompt", "prompt_token_ids"}, key=str)
    if unknown:
        raise bad_request(f"prompt: {shortened(unknown[0])} is not supported; leave it out")
    text, ids = fields.get("prompt"), fields.get("prompt_token_ids")
    if _is_list(ids):  # vLLM's own dicts may also contain the text
        return _items(ids)
    if ids is None and isinstance(text, str):
        return text
    raise bad_request("prompt: an object must have a prompt, which is text, or prompt_token_ids")


def _is_list(given: object) -> bool:
    return not isinstance(given, str) and (isinstance(given, Sequence) or hasattr(given, "tolist"))


def _items(given: Any) -> list[Any]:
    """Converts arrays and tuples to lists of plain numbers."""
    return [item.tolist() if hasattr(item, "tolist") else item for item in given]


def stop_strings(given: object) -> list[str]:
    """Returns the stop strings as a list. Raises ValueError."""
    many = [*given] if isinstance(given, Sequence) and not isinstance(given, str) else given
    try:
        checked = one_or_more(MAX_STOP_STRINGS)(many)
    except ValueError as e:
        raise ValueError(f"stop: {e}") from e
    assert isinstance(checked, list)
    return checked


def most_tokens(tokens: list[int], asked: int, context: int, vocab_size: int) -> int:
    """The maximum number of tokens to generate. asked: max_tokens of the params; its default is reduced to
    the room in the context. Raises ValueError."""
    if not whole(asked, 0):
        return asked  # `SamplingParams.check` refuses it
    with value_errors():
        limit = None if asked == DEFAULT_MAX_TOKENS else asked
        most = token_limit(tokens, limit, DEFAULT_MAX_TOKENS, context, "max_tokens")
        check_vocabulary(tokens, vocab_size)
        return most


def conversations(given: Sequence[Any]) -> list[Sequence[Any]]:
    """Returns a list of conversations from one (a list of messages) or several. Raises ValueError."""
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise ValueError(f"messages must be a list of messages or a list of such lists, not {given!r:.60}")
    several = bool(given) and all(isinstance(each, Sequence) and not isinstance(each, str) for each in given)
    return list(given) if several else [given]


def chat_text(messages: Sequence[Any], tokenizer: Tokenizer, fields: Mapping[str, Any]) -> str:
    """Returns the prompt of a chat. fields: other fields of a chat request's body. Raises ValueError."""
    body = {
        "messages": list(messages),
        **{name: value for name, value in fields.items() if value is not None},
    }
    with value_errors():
        request = parse_object(body, ChatMessages, "")
        request.check()
        return render(request, tokenizer)
