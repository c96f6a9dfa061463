"""Compares texts of the sides that must be equal.

Sides that were started here with the same model and arithmetic must write the same text, at any draft length,
in any round and at any load. For other servers, only the share of texts equal to the first side's is counted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from nextn.bench.dev.sweep.contestant import Contestant
from nextn.bench.texts import Difference, Texts
from nextn.server_config import ServerConfig

# Options that must not change a text: the options of these groups, and these options.
FREE_GROUPS = ("memory", "speculation", "server")
FREE = ("threads", "context_length", "chunked_prefill_size", "max_running_requests", "check_integrity")


def text_key(info: dict[str, Any]) -> Hashable:
    """A key of the options in a nextn server's /server_info that can change texts. Servers with equal keys
    must write the same text.

    Every option counts that is not known to have no effect.
    """
    free = {f.name for f in dataclasses.fields(ServerConfig) if f.metadata["group"] in FREE_GROUPS} | {*FREE}
    settings = {f.name: info.get(f.name) for f in dataclasses.fields(ServerConfig) if f.name not in free}
    engine = info["engine"] or {}
    settings |= {name: engine[name] for name in ("dtype", "device") if name in engine}  # not "auto"
    return tuple(sorted((name, str(value)) for name, value in settings.items()))


@dataclass
class Agreement:
    """How many texts of a server without a group were compared with the first side's, and how many differ."""

    compared: int = 0
    differ: int = 0
    first: Difference | None = None


@dataclass
class Identity:
    """All texts of a run. `groups`: a key for each side; sides with equal keys must write equal texts. None:
    equality is not required."""

    groups: Sequence[Hashable | None]
    agreements: dict[int, Agreement] = field(default_factory=dict)  # of sides without a group
    _held: dict[tuple[Hashable, int], Texts] = field(default_factory=dict)  # group, scenario
    _base: dict[tuple[int, int], tuple[str, str]] = field(default_factory=dict)  # scenario, prompt

    @staticmethod
    def of(sides: Sequence[Contestant]) -> Identity:
        return Identity([text_key(s.info) if s.spec.started else None for s in sides])

    def add(self, side: int, scenario: int, prompt: int, text: str, where: str) -> None:
        """Adds a text of a side. `prompt`: its number in the scenario. The first side's texts must be added
        before the others'."""
        if side == 0:
            self._base.setdefault((scenario, prompt), (text, where))
        group = self.groups[side]
        if group is not None:
            self._held.setdefault((group, scenario), Texts()).add(prompt, text, where)
        elif side != 0 and (base := self._base.get((scenario, prompt))) is not None:
            agreement = self.agreements.setdefault(side, Agreement())
            agreement.compared += 1
            if text != base[0]:
                agreement.differ += 1
                agreement.first = agreement.first or Difference(prompt, *base, text, where)

    @property
    def compared(self) -> int:
        return sum(texts.compared for texts in self._held.values())

    @property
    def prompts(self) -> int:
        return sum(texts.prompts for texts in self._held.values())

    @property
    def differences(self) -> list[Difference]:
        return [difference for texts in self._held.values() for difference in texts.differences]
