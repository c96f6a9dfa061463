"""Goodput: requests per second that met every latency target. Targets have `vllm bench serve`'s form."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from nextn.bench.client import Load, Reply

LATENCIES: dict[str, Callable[[Reply], float]] = {
    "ttft": lambda reply: reply.ttft,
    "tpot": lambda reply: reply.tpot or 0.0,
    "e2el": lambda reply: reply.latency,
}


def parse_slos(words: Sequence[str]) -> dict[str, float]:
    """Parses words like ["ttft:200", "tpot:50"] into milliseconds by name. Raises ValueError."""
    slos = {}
    for word in words:
        name, _, text = word.partition(":")
        try:
            milliseconds = float(text)
        except ValueError:
            milliseconds = 0.0
        if name not in LATENCIES or not milliseconds > 0:
            raise ValueError(
                f"--goodput {word}: it must be {', '.join(f'{n}:MS' for n in LATENCIES)}, MS > 0"
            )
        slos[name] = milliseconds
    return slos


def goodput(load: Load, slos: Mapping[str, float]) -> float:
    """Requests per second that met all targets. A failed request does not count."""

    def good(reply: Reply) -> bool:
        return all(LATENCIES[name](reply) * 1000.0 <= ms for name, ms in slos.items())

    return sum(map(good, load.replies)) / load.seconds
