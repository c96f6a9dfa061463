"""The radix prefix cache: a compressed tree of pages. The key of a page has `ahead` tokens after the page.

A node holds consecutive pages, and its children continue after them. With page_size P, a node of m pages has
m * P + ahead tokens: its last `ahead` tokens are also the first of each child, and the children of a node
differ somewhere in their first P + ahead tokens.

    P = 2, ahead = 1
                root ── [a b c] page 7 ──┬── [c d e f g] pages 3 9
                                         └── [c d x]     page 4

A lock increases a count in every node from the handle to the root. So below an unlocked node all nodes are
unlocked, and all unlocked nodes can be evicted, leaf by leaf.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush, heapreplace

from nextn.kvcache.base import Match, PrefixCache


class Node:
    __slots__ = ("children", "locks", "number", "pages", "parent", "queued", "tokens", "used")

    def __init__(
        self, number: int, parent: Node | None, tokens: list[int], pages: list[int], used: int
    ) -> None:
        self.number = number  # breaks ties in the queue
        self.parent = parent  # None: the root
        self.tokens, self.pages = tokens, pages
        self.used = used  # time of last use; all pages of a node are used together
        self.children: dict[tuple[int, ...], Node] = {}  # by their first page_size + ahead tokens
        self.locks = 0
        self.queued = False


class RadixCache(PrefixCache):
    """Times: match and insert O(tokens); lock and unlock O(nodes on the path); evict O(pages + log(nodes)),
    amortized over the uses since an entry was queued."""

    def __init__(self, page_size: int, ahead: int = 1) -> None:
        self.page_size, self.ahead = page_size, ahead
        self.evictable = 0
        self._time = 0
        self._nodes = 0  # ever made
        self._root = Node(0, None, [], [], 0)
        # Leaves to evict, (time, number, node), the least recent first. Updated lazily: an entry may be
        # older than its node's last use, and its node may be locked or no longer a leaf; `evict` handles
        # this. Every unlocked leaf has exactly one entry, no node has two (`queued`).
        self._queue: list[tuple[int, int, Node]] = []

    def knows(self, length: int) -> int:
        return max(0, length - self.ahead) // self.page_size

    def match(self, tokens: list[int]) -> Match:
        node, pages = self._descend(tokens, self.knows(len(tokens)))
        return Match(pages, node)

    def lock(self, handle: object) -> None:
        assert isinstance(handle, Node)
        node: Node | None = handle
        while node is not None:
            if node.locks == 0:
                self.evictable -= len(node.pages)
            node.locks += 1
            node = node.parent

    def unlock(self, handle: object) -> None:
        assert isinstance(handle, Node)
        node: Node | None = handle
        while node is not None:
            assert node.locks > 0, "unlocked more often than locked"
            node.locks -= 1
            if node.locks == 0:
                self.evictable += len(node.pages)
                self._offer(node)
            node = node.parent

    def insert(self, tokens: list[int], pages: list[int]) -> Match:
        known = len(pages) * self.page_size + self.ahead
        assert not pages or len(tokens) >= known, "the last page's successors are not known"
        node, held = self._descend(tokens, len(pages))
        if len(held) < len(pages):
            start, end = len(held) * self.page_size, len(pages) * self.page_size
            node = self._add(node, tokens[start : end + self.ahead], pages[len(held) :], self._time)
            self.evictable += len(node.pages)
            self._offer(node)
            held += node.pages
        return Match(held, node)

    def evict(self, count: int) -> list[int]:
        given: list[int] = []
        queue = self._queue
        while queue and len(given) < count:
            time, _, node = queue[0]
            if node.locks or node.children:
                heappop(queue)
                node.queued = False
            elif time != node.used:
                heapreplace(queue, (node.used, node.number, node))
            else:
                take = min(count - len(given), len(node.pages))
                given += node.pages[: -take - 1 : -1]
                if take < len(node.pages):
                    del node.pages[-take:]
                    del node.tokens[-take * self.page_size :]
                else:
                    heappop(queue)
                    self._remove(node)
        self.evictable -= len(given)
        return given

    # --- the tree -----------------------------------------------------------------------------

    def _key(self, tokens: list[int], start: int = 0) -> tuple[int, ...]:
        return tuple(tokens[start : start + self.page_size + self.ahead])

    def _descend(self, tokens: list[int], count: int) -> tuple[Node, list[int]]:
        """Follows the first `count` pages of `tokens` as far as they are cached, and marks them as used.
        Splits a node if they end inside it. Returns (the node at whose end they end, their pages)."""
        self._time += 1
        node = self._root
        pages: list[int] = []
        while len(pages) < count:
            start = len(pages) * self.page_size
            child = node.children.get(self._key(tokens, start))
            if child is None:
                break
            shared = self._shared(child, tokens, start, count - len(pages))
            if shared < len(child.pages):
                child = self._split(child, shared)
            child.used = self._time
            pages += child.pages
            node = child
        return node, pages

    def _shared(self, node: Node, tokens: list[int], start: int, max_pages: int) -> int:
        """How many of the node's first pages have the same keys as tokens[start:]; at least one."""
        size, own, ahead = self.page_size, node.tokens, self.ahead
        n = min(len(node.pages), max_pages)
        if tokens[start : start + n * size + ahead] == own[: n * size + ahead]:
            return n
        page = 1
        while (
            tokens[start + page * size : start + page * size + size + ahead]
            == own[page * size : page * size + size + ahead]
        ):
            page += 1
        return page

    def _add(self, parent: Node, tokens: list[int], pages: list[int], used: int) -> Node:
        self._nodes += 1
        node = Node(self._nodes, parent, tokens, pages, used)
        parent.children[self._key(tokens)] = node
        return node

    def _split(self, node: Node, n: int) -> Node:
        """Moves the first n pages of a node into a new parent node and returns the parent. `node` keeps the
        other pages, so handles to it cover the same pages as before, and its locks also count in the parent.
        """
        parent = node.parent
        assert parent is not None
        assert 0 < n < len(node.pages)
        cut = n * self.page_size
        upper = self._add(parent, node.tokens[: cut + self.ahead], node.pages[:n], node.used)
        upper.locks = node.locks
        node.tokens, node.pages, node.parent = node.tokens[cut:], node.pages[n:], upper
        upper.children[self._key(node.tokens)] = node
        return upper

    def _remove(self, node: Node) -> None:
        assert node.parent is not None
        del node.parent.children[self._key(node.tokens)]
        self._offer(node.parent)

    def _offer(self, node: Node) -> None:
        """Queues a node for eviction if it is an unlocked leaf and not in the queue yet."""
        if not (node.locks or node.children or node.queued or node.parent is None):
            node.queued = True
            heappush(self._queue, (node.used, node.number, node))

    # --- checks -------------------------------------------------------------------------------

    def _walk(self) -> Iterator[Node]:
        """Every node but the root, parents first."""
        stack = list(self._root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack += node.children.values()

    def pages(self) -> list[int]:
        return [page for node in self._walk() for page in node.pages]

    def path(self, handle: object) -> tuple[list[int], list[int]]:
        assert isinstance(handle, Node)
        tokens: list[int] = []
        pages: list[int] = []
        node = handle
        while node.parent is not None:
            tokens = node.tokens + tokens[self.ahead :]
            pages = node.pages + pages
            node = node.parent
        return tokens, pages

    def check_integrity(self, locked: Iterable[object]) -> None:
        locks: Counter[Node] = Counter()
        for handle in locked:
            assert isinstance(handle, Node)
            node: Node | None = handle
            while node is not None:
                locks[node] += 1
                node = node.parent
        nodes = list(self._walk())
        assert locks.keys() <= {self._root, *nodes}, "a lock on a node that is not in the tree"
        for node in nodes:
            assert node.parent is not None
            assert node.parent.children.get(self._key(node.tokens)) is node
            assert node.pages
            assert len(node.tokens) == len(node.pages) * self.page_size + self.ahead
            assert node.parent is self._root or node.parent.tokens[-self.ahead :] == node.tokens[: self.ahead]
            assert node.parent is self._root or node.parent.used >= node.used
            assert node.used <= self._time
            assert node.locks == locks[node], "locks held and locks counted differ"
        assert self._root.locks == locks[self._root], "locks held and locks counted differ"
        assert not self._root.pages
        pages = self.pages()
        assert len(set(pages)) == len(pages), "a page is in the tree twice"
        assert self.evictable == sum(len(node.pages) for node in nodes if not node.locks)
        queued = Counter(node for _, _, node in self._queue)
        assert queued == Counter(node for node in nodes if node.queued), "a queue entry too many or too few"
        assert all(time <= node.used for time, _, node in self._queue)
        assert all(node.queued for node in nodes if not (node.locks or node.children))
