"""What other engines' switches for shared experts make of a line's words, when all of it is nextn's own.

expert_parallel(["--tp-size", "2", "--dp-size", "4"])  # vLLM's --enable-expert-parallel
-> ["--tp-size", "8", "--dp-size", "4", "--enable-dp-attention", "--ep-size", "8"]
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

RANKS = ("--tp-size", "--tp", "--tensor-parallel-size")
GROUPS = ("--dp-size", "--dp", "--data-parallel-size")
SHARDS = ("--ep-size", "--ep", "--expert-parallel-size")
DP_ATTENTION = "--enable-dp-attention"


def expert_parallel(words: Sequence[str]) -> list[str]:
    """vLLM's: its --tensor-parallel-size counts the ranks of one group, nextn's those of all groups."""
    groups = _size(words, GROUPS)
    if groups > 1 and DP_ATTENTION not in words:
        words = _scaled(words, groups) if _values(words, RANKS) else [*words, RANKS[0], str(groups)]
        words = [*words, DP_ATTENTION]
    return all_ranks(words)


def all_ranks(words: Sequence[str]) -> list[str]:
    """SGLang's --enable-ep-moe: a shard for each rank, if the line says nothing else."""
    ranks = _size(words, RANKS)
    if ranks == 1 or _values(words, SHARDS):
        return list(words)
    return [*words, SHARDS[0], str(ranks)]


SWITCHES: Mapping[str, Callable[[Sequence[str]], list[str]]] = {
    "--enable-expert-parallel": expert_parallel,
    "--enable-ep-moe": all_ranks,
    "--enable-deepep-moe": all_ranks,
}


def _size(words: Sequence[str], names: Collection[str]) -> int:
    """1 for what is no number: the parser says so later."""
    last = (_values(words, names) or ["1"])[-1]
    return int(last) if last.isdecimal() else 1


def _values(words: Sequence[str], names: Collection[str]) -> list[str]:
    return [words[i].partition("=")[2] if own else words[i] for i, own in _places(words, names)]


def _scaled(words: Sequence[str], factor: int) -> list[str]:
    """With every number of ranks so many times as large."""
    result = list(words)
    for (i, own), value in zip(_places(words, RANKS), _values(words, RANKS), strict=True):
        if value.isdecimal():
            name = words[i].partition("=")[0] + "=" if own else ""
            result[i] = f"{name}{int(value) * factor}"
    return result


def _places(words: Sequence[str], names: Collection[str]) -> Iterator[tuple[int, bool]]:
    """Where values are, and whether the option's name is in the same word."""
    for i, word in enumerate(words):
        name, equals, _ = word.partition("=")
        if word == "--":
            return
        if name in names and equals:
            yield i, True
        elif name in names and i + 1 < len(words):
            yield i + 1, False
