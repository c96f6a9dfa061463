"""Separates an answer's reasoning, up to </think>, from what comes after it.

    "<think>Two and two.</think>Four."  ->  reasoning "Two and two.", content "Four."

An opening <think> counts at the very beginning only: models that think write it first, or find it at the end
of their prompt. Only the two marks are removed. The parts do not depend on how the text was cut into pushes.
"""

from __future__ import annotations

from nextn.server.parsers.parts import Part, cut

OPEN, CLOSE = "<think>", "</think>"
MARKERS = (OPEN, CLOSE)
# --reasoning-parser -> does an answer begin within the reasoning, where its prompt does not say?
PARSERS = {"deepseek-r1": True, "deepseek-v3": False}


def begins_inside(parser: str, prompt: str) -> bool:
    """Does the answer to this prompt begin with reasoning, even if it does not open it?"""
    tail = prompt.rstrip()
    if tail.endswith(MARKERS):
        return tail.endswith(OPEN)
    return PARSERS[parser]


class ReasoningParser:
    """`inside`: the answer begins with reasoning. `stream`: reasoning is passed on as it comes; else in one
    piece when it is complete."""

    def __init__(self, inside: bool, stream: bool = True) -> None:
        self._inside, self._stream = inside, stream
        self._at_start = True
        self._held = ""
        self._reasoning = ""  # not yet passed on

    def push(self, text: str) -> list[Part]:
        self._held += text
        if self._at_start:
            if self._held != OPEN and OPEN.startswith(self._held):
                return []
            self._at_start = False
            if self._held.startswith(OPEN):
                self._inside = True
                self._held = self._held.removeprefix(OPEN)
        parts: list[Part] = []
        if self._inside:
            before, marker, self._held = cut(self._held, (CLOSE,))
            self._reasoning += before
            self._inside = marker is None
            if self._stream or not self._inside:
                parts += self._take_reasoning()
        if not self._inside and self._held:
            parts.append(Part("content", self._held))
            self._held = ""
        return parts

    def finish(self) -> list[Part]:
        """What was held back, when no more will come."""
        if not self._inside:
            return [Part("content", self._held)] if self._held else []
        self._reasoning += self._held
        return self._take_reasoning()

    def _take_reasoning(self) -> list[Part]:
        text, self._reasoning = self._reasoning, ""
        return [Part("reasoning", text)] if text else []
