"""What is remembered of prompts, and for how long."""

from __future__ import annotations

import random

from nextn.server.process import prefix_index
from nextn.server.process.prefix_index import BLOCK, PrefixIndex, hashed


def test_whole_blocks_count_and_depend_on_all_before() -> None:
    rng = random.Random(0)
    tokens = [rng.randrange(1000) for _ in range(5 * BLOCK + 3)]
    assert len(hashed(tokens)) == 5
    assert hashed(tokens[: BLOCK - 1]) == []
    other = [tokens[0] + 1, *tokens[1:]]
    assert not set(hashed(tokens)) & set(hashed(other))


def test_matched_is_the_longest_known_beginning() -> None:
    index = PrefixIndex(4096)
    tokens = list(range(4 * BLOCK))
    assert index.matched(hashed(tokens)) == 0
    index.add(hashed(tokens))
    assert index.matched(hashed(tokens)) == 4 * BLOCK
    assert index.matched(hashed([*tokens, 1, 2])) == 4 * BLOCK
    assert index.matched(hashed([*tokens[: 2 * BLOCK], *range(3 * BLOCK)])) == 2 * BLOCK
    assert index.matched(hashed(tokens[BLOCK:])) == 0
    assert index.matched([]) == 0


def test_the_oldest_goes_and_a_prompts_end_before_its_beginning() -> None:
    index = PrefixIndex(4 * BLOCK)
    old, new = hashed(range(3 * BLOCK)), hashed(range(5000, 5000 + 2 * BLOCK))
    index.add(old)
    index.add(new)
    assert len(index) == 4
    assert (index.matched(old), index.matched(new)) == (2 * BLOCK, 2 * BLOCK)
    index.add(old[:1])  # used again
    index.add(hashed(range(9000, 9000 + 2 * BLOCK)))
    assert (index.matched(old), index.matched(new)) == (BLOCK, BLOCK)


def test_a_prompt_longer_than_the_index_leaves_its_beginning() -> None:
    index = PrefixIndex(2 * BLOCK + 5)
    index.add(hashed(range(100 * BLOCK)))
    assert len(index) == 2
    assert index.matched(hashed(range(100 * BLOCK))) == 2 * BLOCK


def test_memory_is_bounded() -> None:
    assert PrefixIndex(10**9).most == prefix_index.MOST_BLOCKS
    assert PrefixIndex(0).most == 0
    index = PrefixIndex(0)
    index.add(hashed(range(BLOCK)))
    assert len(index) == 0
