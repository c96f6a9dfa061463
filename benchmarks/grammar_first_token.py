"""Measures the delay of the first token from trying a constraint in another process before compiling it.

    python benchmarks/grammar_first_token.py [--rounds 40] [--output benchmarks/results]

The constraints are ordinary schemas and expressions, all different, so that none is cached. The embedded
model serves one request of one token at a time. In turns, a constraint is compiled directly in this process
("direct"), tried first ("tried"), or already compiled ("kept"). Results are milliseconds, the median and the
minimum: other work on the machine can only make a run slower.

Then the memory of the processes is measured, and the cost of asking another process for every mask: the times
of a round trip to it, of a mask, and of a mask whose memory and time are watched, as in a server. The last
line is JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from last_line import tell

from nextn.bench.machine import this_machine
from nextn.config import EMBEDDED
from nextn.constraint import CompiledGrammar, Constraint
from nextn.grammar.backends import make_backend
from nextn.grammar.compiler import GrammarCompiler
from nextn.llm import LLM
from nextn.request import SamplingParams


def person(i: int) -> str:
    fields = {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 150 + i},
        "tags": {"type": "array", "items": {"enum": ["a", "b", f"c{i}"]}},
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "zip": {"type": "string"}},
        },
    }
    return json.dumps({"type": "object", "properties": fields, "required": list(fields)})


def wide(i: int) -> str:
    part = {"type": "object", "properties": {f"q{j}": {"type": ["string", "null"]} for j in range(10)}}
    return json.dumps({"type": "object", "properties": {f"p{i}_{j}": part for j in range(30)}})


CASES: dict[str, Callable[[int], Constraint]] = {
    "small schema": lambda i: Constraint("json_schema", person(i)),
    "schema of 300 fields": lambda i: Constraint("json_schema", wide(i)),
    "regex": lambda i: Constraint("regex", rf"[A-Z][a-z]+ \d{{1,4}} {i}"),
    "choice": lambda i: Constraint("choice", json.dumps([f"yes{i}", "no", "perhaps"])),
}


class Direct:
    """A compiler without trials."""

    def __init__(self, grammars: GrammarCompiler) -> None:
        self.backend = make_backend(grammars.name, grammars.vocabulary)

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        return self.backend.compile(constraint.kind, self.backend.prepare(constraint))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model-path", default=EMBEDDED)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--output", type=Path, help="folder for the result")
    args = parser.parse_args()
    llm = LLM(args.model_path)
    tried, direct = llm.grammars, Direct(llm.grammars)
    seconds: dict[tuple[str, str], list[float]] = {}
    for turn in range(args.rounds + 5):  # the first five are warm-up
        for name, make in CASES.items():
            for how in ("direct", "tried", "kept"):
                llm.grammars = direct if how == "direct" else tried  # type: ignore[assignment]
                took = first_token(llm, make(turn))
                if turn >= 5:
                    seconds.setdefault((name, how), []).append(took)
    rows = []
    print("| constraint | direct: median, best | tried | kept |\n|---|---|---|---|")
    for name in CASES:
        each = {
            how: [
                round(1000 * ms, 2) for ms in (statistics.median(seconds[name, how]), min(seconds[name, how]))
            ]
            for how in ("direct", "tried", "kept")
        }
        print(f"| {name} | " + " | ".join(f"{median}, {best}" for median, best in each.values()) + " |")
        rows.append({"constraint": name, **each})
    sizes = [mib(pid) for pid in family(tried)]
    print("MiB, shared and own, of the processes that try: " + ", ".join(f"{s}, {o}" for s, o in sizes))
    trip = round_trip()
    masks = [mask_seconds(grammars) for _ in range(5) for grammars in (direct, tried)]
    mask, watched = min(masks[::2]), min(masks[1::2])
    print(
        f"a round trip to another process: {1e6 * trip:.0f} us; a mask: {1e6 * mask:.1f} us, "
        f"watched: {1e6 * watched:.1f} us"
    )
    result = {
        "model": args.model_path, "rounds": args.rounds, "rows": rows, "mib": sizes,
        "round_trip_us": round(1e6 * trip, 1), "mask_us": round(1e6 * mask, 1),
        "watched_mask_us": round(1e6 * watched, 1),
        "machine": dataclasses.asdict(this_machine()), "date": str(datetime.date.today()),
    }  # fmt: skip
    tell("grammar-first-token", result, args.output)
    return 0


def first_token(llm: LLM, constraint: Constraint) -> float:
    begin = time.perf_counter()
    llm.generate("x", SamplingParams(max_tokens=1, temperature=0, constraint=constraint))
    return time.perf_counter() - begin


def family(grammars: GrammarCompiler) -> list[int]:
    parent = grammars.workers.pid
    assert parent is not None
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [parent, *map(int, children)]


def mib(pid: int) -> tuple[float, float]:
    """Memory of a process in MiB: (resident, the part that is not shared with other processes)."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines[1:])}
    return round(kib["Rss"] / 1024, 1), round((kib["Private_Clean"] + kib["Private_Dirty"]) / 1024, 1)


def answer(link: Connection) -> None:
    while True:
        try:
            link.send_bytes(link.recv_bytes())
        except EOFError:
            return


def round_trip() -> float:
    """Seconds of a round trip to another process. Round trips are a step's time apart, so that the other
    process sleeps in between, as it would in a server."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    other = multiprocessing.get_context("spawn").Process(target=answer, args=(theirs,), daemon=True)
    other.start()
    theirs.close()
    took = []
    for turn in range(220):
        begin = time.perf_counter()
        ours.send_bytes(b"x")
        ours.recv_bytes()
        if turn >= 20:
            took.append(time.perf_counter() - begin)
        while time.perf_counter() - begin < 0.002:
            pass
    ours.close()
    other.join()
    return statistics.median(took)


def mask_seconds(grammars: Direct | GrammarCompiler) -> float:
    grammar = grammars.compile(CASES["small schema"](0)).begin()
    took = []
    for _ in range(100):
        begin = time.perf_counter()
        mask = grammar.mask()
        took.append(time.perf_counter() - begin)
        if not mask.any():
            break
        grammar.advance([int(mask.argmax())])
    return statistics.median(took)


if __name__ == "__main__":
    sys.exit(main())
