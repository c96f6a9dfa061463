"""How the text of a chat's answer is read: reasoning first, tool calls in what is left of it."""

from __future__ import annotations

from dataclasses import dataclass

from nextn.server.parsers import reasoning, tools
from nextn.server.parsers.parts import Part


@dataclass(frozen=True)
class Reading:
    """How an answer is parted. With the defaults all of it is content."""

    tool_parser: str | None = None  # one of tools.FORMATS; None: calls are not looked for
    reasoning: bool | None = None  # does the answer begin within it? None: it is not parted off
    stream_reasoning: bool = True
    echo: str = ""  # what the content begins with: the message that the answer goes on with

    @property
    def markers(self) -> frozenset[str]:
        """What must come through as text, special tokens though they may be."""
        found = () if self.tool_parser is None else tools.MARKERS
        return frozenset(found if self.reasoning is None else (*found, *reasoning.MARKERS))


CONTENT = Reading()


class AnswerParser:
    """Text in, parts out, for one choice. All parts together do not depend on how the text was cut."""

    def __init__(self, reading: Reading) -> None:
        self._tools = None if reading.tool_parser is None else tools.ToolParser(reading.tool_parser)
        self._reasoning: reasoning.ReasoningParser | None = None
        if reading.reasoning is not None:
            self._reasoning = reasoning.ReasoningParser(reading.reasoning, reading.stream_reasoning)

    def push(self, text: str) -> list[Part]:
        if self._reasoning is None:
            return self._content([Part("content", text)] if text else [])
        return self._content(self._reasoning.push(text))

    def finish(self) -> list[Part]:
        """What was held back, when no more will come."""
        parts = [] if self._reasoning is None else self._content(self._reasoning.finish())
        return parts if self._tools is None else parts + self._tools.finish()

    def _content(self, parts: list[Part]) -> list[Part]:
        if self._tools is None:
            return parts
        read: list[Part] = []
        for part in parts:
            read += self._tools.push(part.text) if part.kind == "content" else [part]
        return read
