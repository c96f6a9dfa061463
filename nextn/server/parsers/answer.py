"""Parses the text of a chat's answer: first separates reasoning, then finds tool calls in the content."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nextn.server.parsers import reasoning, tools
from nextn.server.parsers.parts import Part
from nextn.server.parsers.reasoning import ReasoningParser


@dataclass(frozen=True)
class AnswerFormat:
    """How to parse an answer. With the defaults all of it is content."""

    tool_parser: str | None = None  # one of tools.FORMATS; None: do not look for calls
    reasoning: bool | None = None  # whether the answer begins inside reasoning; None: do not separate it
    stream_reasoning: bool = True
    echo: str = ""  # the content begins with this: the message that the answer continues
    opens: bool = False  # whether blanks may come before the answer's <think>
    call_ends_reasoning: bool = False
    functions: Mapping[str, Any] = field(default_factory=dict, compare=False)  # name -> parameters

    @property
    def markers(self) -> frozenset[str]:
        """Markers that the detokenizer must keep in the text, even if they are special tokens."""
        found = () if self.tool_parser is None else tools.FORMATS[self.tool_parser].marks
        return frozenset(found if self.reasoning is None else (*found, *reasoning.MARKERS))

    def reasoning_parser(self) -> ReasoningParser | None:
        if self.reasoning is None:
            return None
        ends: tuple[str, ...] = ()
        if self.call_ends_reasoning and self.tool_parser is not None:
            ends = tools.FORMATS[self.tool_parser].reader.BEGINS[:1]
        return ReasoningParser(self.reasoning, self.stream_reasoning, self.opens, ends)


CONTENT = AnswerFormat()


class AnswerParser:
    """Turns the text of one choice into parts. The joined parts do not depend on how the text was cut."""

    def __init__(self, answer_format: AnswerFormat) -> None:
        name = answer_format.tool_parser
        self._tools = None if name is None else tools.parser(name, answer_format.functions)
        self._reasoning = answer_format.reasoning_parser()

    @property
    def calls_ended(self) -> int:
        return 0 if self._tools is None else self._tools.ended

    def push(self, text: str) -> list[Part]:
        if self._reasoning is None:
            return self._content([Part("content", text)] if text else [])
        return self._content(self._reasoning.push(text))

    def finish(self) -> list[Part]:
        """The parts that were held back. Call it at the end of the text."""
        parts = [] if self._reasoning is None else self._content(self._reasoning.finish())
        return parts if self._tools is None else parts + self._tools.finish()

    def _content(self, parts: list[Part]) -> list[Part]:
        if self._tools is None:
            return parts
        read: list[Part] = []
        for part in parts:
            read += self._tools.push(part.text) if part.kind == "content" else [part]
        return read
