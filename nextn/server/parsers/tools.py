"""The formats of tool calls, by the names of --tool-call-parser. Each format has a file that describes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from nextn.server.parsers import deepseek, glm, hermes, qwen
from nextn.server.parsers.calls import CallParser
from nextn.server.parsers.spelling import Spelling


class Format(NamedTuple):
    """reader: finds calls in an answer. spelling: of calls that grammars ask for. marks: what must come
    through as text, special tokens though they may be."""

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
    """`name`: one of FORMATS. `functions`: each function's parameters, a JSON schema or None."""
    return FORMATS[name].reader(functions or {})
