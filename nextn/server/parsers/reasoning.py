"""Separates an answer's reasoning, up to </think>, from the content after it.

    "<think>Two and two.</think>Four."  ->  reasoning "Two and two.", content "Four."

An opening <think> counts only at the very beginning: a reasoning model writes it first, or its prompt ends
with it. Only the marks are removed. The parts do not depend on how the text was cut into pushes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nextn.server.parsers.parts import Part, cut

OPEN, CLOSE = "<think>", "</think>"
MARKERS = (OPEN, CLOSE)
MOST_BLANKS = 16  # before <think>


class Format(NamedTuple):
    """How a model writes reasoning. begins: an answer begins inside reasoning if its prompt ends with no
    mark. opens: an answer may open reasoning itself, after blanks. call_ends: a tool call also ends
    reasoning; GLM and Qwen may forget </think> before a call (SGLang's reasoning_parser.py, vLLM's
    qwen3_reasoning_parser.py)."""

    begins: bool
    opens: bool = False
    call_ends: bool = False


# Values of --reasoning-parser
PARSERS = {
    "deepseek-r1": Format(begins=True),
    "deepseek-v3": Format(begins=False),
    "glm45": Format(begins=False, opens=True, call_ends=True),
    "qwen3": Format(begins=False, opens=True, call_ends=True),
    "qwen3-thinking": Format(begins=True, opens=True, call_ends=True),
}


def begins_inside(parser: str, prompt: str) -> bool:
    """Whether the answer to this prompt begins inside reasoning, even without its own <think>."""
    tail = prompt.rstrip()
    if tail.endswith(MARKERS):
        return tail.endswith(OPEN)
    return PARSERS[parser].begins


def may_open(parser: str, prompt: str) -> bool:
    """Whether the answer to this prompt may open reasoning itself, after blanks."""
    return PARSERS[parser].opens and not prompt.rstrip().endswith(MARKERS)


class ReasoningParser:
    """Splits one answer into reasoning and content. inside: the answer begins inside reasoning. stream:
    reasoning is passed on as it arrives; otherwise in one piece when it is complete. blanks: blanks may come
    before <think>. calls: marks that also end reasoning; they are part of the content."""

    def __init__(
        self, inside: bool, stream: bool = True, blanks: bool = False, calls: Sequence[str] = ()
    ) -> None:
        self._inside, self._stream, self._blanks = inside, stream, blanks
        self._ends = (CLOSE, *calls)
        self._at_start = True
        self._held = ""
        self._reasoning = ""  # not yet passed on

    def push(self, text: str) -> list[Part]:
        self._held += text
        if self._at_start:
            said = self._held.lstrip() if self._blanks else self._held
            few = len(self._held) - len(said) <= MOST_BLANKS
            if few and said != OPEN and OPEN.startswith(said):
                return []
            self._at_start = False
            if few and said.startswith(OPEN):
                self._inside = True
                self._held = said.removeprefix(OPEN)
        parts: list[Part] = []
        if self._inside:
            before, marker, self._held = cut(self._held, self._ends)
            if marker is not None and marker != CLOSE:
                self._held = marker + self._held
            self._reasoning += before
            self._inside = marker is None
            if self._stream or not self._inside:
                parts += self._take_reasoning()
        if not self._inside and self._held:
            parts.append(Part("content", self._held))
            self._held = ""
        return parts

    def finish(self) -> list[Part]:
        """The parts that were held back. Call it at the end of the text."""
        if not self._inside:
            return [Part("content", self._held)] if self._held else []
        self._reasoning += self._held
        return self._take_reasoning()

    def _take_reasoning(self) -> list[Part]:
        text, self._reasoning = self._reasoning, ""
        return [Part("reasoning", text)] if text else []
