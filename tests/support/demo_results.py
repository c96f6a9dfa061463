"""Results like those of the demo, with numbers that are easy to recognize."""

from __future__ import annotations

from nextn.bench.completion import Completion, Step
from nextn.bench.machine import Machine
from nextn.bench.measure import Metrics, Spread
from nextn.bench.results import Point, Results, Side
from nextn.bench.texts import Texts
from nextn.stats import SpecStats


def one_round(throughput: float, ttft: float, tpot: float) -> Metrics:
    spreads = [
        Spread(mean, mean, 0.0, mean, mean, mean, mean) for mean in (ttft + 127 * tpot, ttft, tpot, tpot)
    ]
    return Metrics(6, 10.0, 900, 768, throughput, 1.0, *spreads)


def point(
    concurrency: int, without: tuple[float, ...], with_mtp: tuple[float, ...], depths: int = 2
) -> Point:
    """without, with_mtp: each side's (tok/s, TTFT in ms, TPOT in ms)."""
    spec = SpecStats(100, [100] * depths, [81, 60, 40, 20, 10][:depths], 241)
    return Point(concurrency, 6, Side([one_round(*without)]), Side([one_round(*with_mtp)]), spec)


def demo_results() -> Results:
    texts = Texts()
    for where in ("without MTP", "with MTP"):
        for prompt in range(32):
            texts.add(prompt, f"text {prompt}", where)
    return Results(
        model="nextn-tiny",
        engine={"dtype": "float32", "device": "cpu", "threads": 2},
        num_steps=2,
        max_tokens=128,
        questions=False,
        temperature=0.7,
        sampled=10,
        machine=Machine("AMD EPYC", 2, "3.11.7", "2.13.0"),
        points=[
            point(1, (50.0, 51.4, 20.0), (75.0, 55.0, 12.9)),
            point(16, (1268.5, 4200.0, 157.8), (1335.0, 4500.0, 146.0)),
        ],
        texts=texts,
        completion=Completion(
            "def f(a):\n",
            [
                Step([("    return", 0)], []),
                Step([(" a", 1), (" <b>", 2), ("&", 3), ("\n", 0)], [("\n#", 4)]),
                Step([(" x", 7)], []),
            ],
        ),
        seconds=151.3,
    )
