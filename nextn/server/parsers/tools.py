"""The table of all formats of tool calls, by their names in --tool-call-parser. Each format's file describes
it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from nextn.server.parsers import deepseek, glm, hermes, qwen
from nextn.server.parsers.calls import CallParser
from nextn.server.parsers.spelling import Spelling


class Format(NamedTuple):
    """A format of tool calls. reader: finds calls in an answer. spelling: for grammars of calls. marks: texts
    that the detokenizer must keep, even if they are special tokens."""

    reader: type[CallParser]
    spelling: Spelling
    marks: tuple[str, ...]


FORMATS = {
    "deepseekv3": Format(deepseek.V3Parser, deepseek.V3, deepseek.MARKS),
    "deepseekv31": Format(deepseek.V31Parser, deepseek.V31, deepseek.MARKS),
    "glm45": Format(glm.GlmParser, glm.GLM45, glm.MARKS),
    "glm47": Format(glm.GlmParser, glm.GLM47, glm.MARKS),
    "hermes": Format(hermes.HermesParser, hermes.HERMES, hermes.MARKS),
    "qwen3_coder": Format(qwen.CoderParser, qwen.CODER, qwen.MARKS),
}


def parser(name: str, functions: Mapping[str, Any] | None = None) -> CallParser:
    """A new parser for one answer. name: one of FORMATS. functions: each function's parameters, a JSON schema
    or None."""
    return FORMATS[name].reader(functions or {})
