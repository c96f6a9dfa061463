"""Requests whose pages are under way between two engines (docs/disaggregation.md). Pure bookkeeping over
`KVManager`: what moves the bytes is in `nextn.disaggregation`.

    fetching:  admitted, with pages for the whole prompt, which arrive; in no step yet
    held:      ended, with pages that another engine still wants; in no step any more
"""

from __future__ import annotations

from collections.abc import Iterator

from nextn.kvcache.manager import KVManager
from nextn.request import Request


def sent_slots(prompt: int, nextn_layers: int, page_size: int) -> int:
    """Slots of a prompt of so many tokens that another engine computes: all but the last token's, which
    chooses. The last of several NextN layers is behind the first one by a token for each, and goes on at the
    beginning of a page.

    >>> sent_slots(40, 1, 16), sent_slots(40, 2, 16)
    (39, 32)
    """
    if nextn_layers <= 1:
        return prompt - 1
    return max(0, prompt - nextn_layers) // page_size * page_size


class Transfers:
    def __init__(self, kv: KVManager) -> None:
        self._kv = kv
        self.fetching: dict[str, Request] = {}
        self.held: dict[str, Request] = {}
        self._begun: list[Request] = []

    def __len__(self) -> int:
        return len(self.fetching) + len(self.held)

    def __iter__(self) -> Iterator[Request]:
        """All of them: they have pages."""
        yield from self.fetching.values()
        yield from self.held.values()

    def begin(self, req: Request) -> None:
        """It has pages, which can be written from now on."""
        req.fetch = False  # should it lose them later, it computes its prompt itself
        self.fetching[req.rid] = req
        self._begun.append(req)

    def begun(self) -> list[Request]:
        """The fetches that began since the last call."""
        found, self._begun = self._begun, []
        return [req for req in found if self.fetching.get(req.rid) is req]

    def arrived(self, rid: str, slots: int) -> None:
        """The first so many slots are true, for the target and for the draft layer."""
        self._kv.received(self.fetching[rid], slots)

    def hold(self, req: Request) -> None:
        """It has ended, and keeps its pages until `release`."""
        assert req.rid not in self.held
        self.held[req.rid] = req

    def release(self, rid: str) -> None:
        """Nobody needs its pages any more: they are as those of any request that has ended."""
        self._kv.release(self.held.pop(rid))

    def give_up(self, rid: str) -> bool:
        """Frees the pages of one that is fetching. False if there is none."""
        req = self.fetching.pop(rid, None)
        if req is None:
            return False
        self._kv.release(req)
        return True
