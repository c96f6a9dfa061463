"""Rewrites other engines' switches for expert parallelism into nextn's options. The rest of the command line
has been translated before.

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
    """Rewrites vLLM's --enable-expert-parallel. vLLM's --tensor-parallel-size counts the ranks of one group,
    nextn's the ranks of all groups."""
    groups = _size(words, GROUPS)
    if groups > 1 and DP_ATTENTION not in words:
        words = _scaled(words, groups) if _values(words, RANKS) else [*words, RANKS[0], str(groups)]
        words = [*words, DP_ATTENTION]
    return all_ranks(words)


def all_ranks(words: Sequence[str]) -> list[str]:
    """Rewrites SGLang's --enable-ep-moe: one shard of experts for each rank, unless there is an --ep-size."""
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
    """The option's last value; 1 if it is missing or not a number, which the parser reports later."""
    last = (_values(words, names) or ["1"])[-1]
    return int(last) if last.isdecimal() else 1


def _values(words: Sequence[str], names: Collection[str]) -> list[str]:
    return [words[i].partition("=")[2] if own else words[i] for i, own in _places(words, names)]


def _scaled(words: Sequence[str], factor: int) -> list[str]:
    """The words, with every value of --tp-size multiplied by `factor`."""
    result = list(words)
    for (i, own), value in zip(_places(words, RANKS), _values(words, RANKS), strict=True):
        if value.isdecimal():
            name = words[i].partition("=")[0] + "=" if own else ""
            result[i] = f"{name}{int(value) * factor}"
    return result


def _places(words: Sequence[str], names: Collection[str]) -> Iterator[tuple[int, bool]]:
    """Yields (index of the word with a value, whether the option's name is in the same word)."""
    for i, word in enumerate(words):
        name, equals, _ = word.partition("=")
        if word == "--":
            return
        if name in names and equals:
            yield i, True
        elif name in names and i + 1 < len(words):
            yield i + 1, False
