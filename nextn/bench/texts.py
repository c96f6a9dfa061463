"""Compares texts that must be equal: every text of a prompt with the prompt's first text."""

from __future__ import annotations

from dataclasses import dataclass, field

AROUND = 60  # characters shown on either side of the first difference


@dataclass(frozen=True)
class Difference:
    """Two different texts of one prompt, and the runs that they came from."""

    prompt: int
    first: str
    first_where: str
    other: str
    other_where: str

    @property
    def position(self) -> int:
        """Index of the first character that differs; the shorter text's length if the other text begins with
        it."""
        pairs = zip(self.first, self.other, strict=False)
        same = min(len(self.first), len(self.other))
        return next((i for i, (a, b) in enumerate(pairs) if a != b), same)

    def __str__(self) -> str:
        at = self.position
        begin, end = max(0, at - AROUND), at + AROUND
        return (
            f"prompt {self.prompt} has two texts; they differ from character {at} on:\n"
            f"  {self.first_where}: ...{self.first[begin:at]!r} | {self.first[at:end]!r}\n"
            f"  {self.other_where}: ...{self.other[begin:at]!r} | {self.other[at:end]!r}"
        )


@dataclass
class Texts:
    """All texts of a run. `compared` counts every text, the first of each prompt included."""

    compared: int = 0
    differences: list[Difference] = field(default_factory=list)
    _first: dict[int, tuple[str, str]] = field(default_factory=dict)

    def add(self, prompt: int, text: str, where: str) -> None:
        """Adds a text of a prompt. `where`: the run that it came from, in words."""
        self.compared += 1
        first, first_where = self._first.setdefault(prompt, (text, where))
        if text != first:
            self.differences.append(Difference(prompt, first, first_where, text, where))

    @property
    def prompts(self) -> int:
        return len(self._first)
