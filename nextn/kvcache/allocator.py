"""Allocates pages of the KV pool. Page 0 is the null page: padding rows write there, no request owns it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class PageAllocator:
    """Pages 1 .. num_pages - 1, each either free or allocated. It does not know who holds a page."""

    def __init__(self, num_pages: int) -> None:
        assert num_pages >= 1, "page 0 is always there"
        self.capacity = num_pages - 1
        self._free = list(range(num_pages - 1, 0, -1))  # a stack: reuses warm pages
        self._taken = bytearray(num_pages)

    @property
    def num_free(self) -> int:
        return len(self._free)

    def alloc(self, n: int) -> list[int] | None:
        """Allocates n pages. If fewer are free, returns None and changes nothing."""
        free, taken = self._free, self._taken
        rest = len(free) - n
        if rest < 0:
            return None
        pages = free[rest:]
        del free[rest:]
        pages.reverse()
        for page in pages:
            taken[page] = 1
        return pages

    def free(self, pages: Sequence[int]) -> None:
        """Frees pages. Asserts that each is allocated, which detects pages that are freed twice."""
        taken = self._taken
        for page in pages:
            assert taken[page], f"page {page} is freed, but nobody holds it"
            taken[page] = 0
        self._free.extend(reversed(pages))

    def check_integrity(self, owned: Iterable[int]) -> None:
        """owned: all pages that somebody holds. Asserts that these and the free pages contain every page
        exactly once."""
        owned = sorted(owned)
        assert sorted([*self._free, *owned]) == list(range(1, self.capacity + 1)), (
            "a page is lost, is held twice, or is held and free"
        )
        assert [page for page, taken in enumerate(self._taken) if taken] == owned
