"""Sends random requests to a real server for a long time, to find requests that harm it.

python benchmarks/fuzz/hostile_requests.py --seconds 3600 --keep findings
python benchmarks/fuzz/hostile_requests.py --seed 7 --only 41 --keep findings    # one request again

Requests have random grammars, schemas, regular expressions, sampling parameters and speculation, and some
clients disconnect. Requirements: no answer is a 500, none takes longer than --limit, and the engine's process
stays the same. A request that breaks one is written to the folder --keep, one file each, and the exit code is
1. Half of the time the server drafts chains, and half of the time trees. Request i of a seed is always the
same. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import itertools
import json
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "faults"))

from attack_cases import TREES
from attacks import RESTARTS, engine_of, family_megabytes, watch, within
from client import Answer, ask
from hostile import Hostile, hostile
from last_line import tell
from server import Server

from nextn.config import EMBEDDED

SHAPES: dict[str, tuple[str, ...]] = {"chains": (), "trees": TREES}
DEAD = "engine_dead"
BUSY = ("queue_full", "engine_unavailable", "grammars_busy")


class Fuzz:
    """`limit`: maximum seconds of an answer. `keep`: folder for the requests that broke a requirement."""

    def __init__(self, seed: int, limit: float, keep: Path | None) -> None:
        self.seed, self.limit, self.keep = seed, limit, keep
        self.outcomes: collections.Counter[str] = collections.Counter()
        self.found: list[dict[str, Any]] = []
        self.running: dict[int, Hostile] = {}
        self.engine: int | None = None  # pid of the engine

    async def play(
        self, server: Server, shape: str, numbers: Iterator[int], until: float, clients: int
    ) -> Any:
        """Sends requests until the time is over or there are no more numbers. Returns the engine's pids, its
        restarts, the memory and the log's complaints."""
        first, restarts = engine_of(server), server.metrics()[RESTARTS]
        peak = [family_megabytes(server)]
        watching = asyncio.create_task(watch(server, peak))
        self.engine = first
        await asyncio.gather(*(self._client(server, shape, numbers, until) for _ in range(clients)))
        watching.cancel()
        await asyncio.sleep(2.0)  # lets the server notice the last clients that disconnected
        found = {
            "pids": [first, engine_of(server)],
            "restarts": int(server.metrics()[RESTARTS] - restarts),
            "megabytes": [round(m, 1) for m in (peak[0], max(peak), family_megabytes(server))],
            "complaints": server.complaints()[:5],
        }
        print(f"{shape}: {found}", file=sys.stderr, flush=True)
        return found

    async def _client(self, server: Server, shape: str, numbers: Iterator[int], until: float) -> None:
        for number in numbers:
            if time.monotonic() > until:
                return
            self.running[number] = request = hostile(random.Random(f"{self.seed}/{number}"))
            outcome, finding = await self._sent(server, request)
            while outcome.endswith(BUSY) and time.monotonic() < until:  # another request is the cause
                await asyncio.sleep(0.5)
                outcome, finding = await self._sent(server, request)
            del self.running[number]
            self.outcomes[outcome] += 1
            if finding:
                self._keep(shape, number, request, outcome)
            self._look_at_engine(server, shape, number, request)

    async def _sent(self, server: Server, request: Hostile) -> tuple[str, bool]:
        """Sends a request. Returns its outcome, and whether it broke a requirement."""
        try:
            body = json.dumps(request.body).encode()
            answer = await within(ask(server.address, body, request.path, request.leaves), self.limit)
        except (OSError, ValueError, KeyError, TypeError) as e:
            return f"no proper answer: {type(e).__name__}", True
        if answer is None:
            return "hung", True
        return self._outcome(answer)

    def _outcome(self, answer: Answer) -> tuple[str, bool]:
        if answer.ended in ("left", "broken"):
            return answer.ended, answer.ended == "broken"
        streamed = answer.ended == "error" and answer.status == 200
        said = f"{answer.status}{' with an error event' if streamed else ''}"
        if answer.code in (*BUSY, DEAD):
            return f"{said} {answer.code}", False  # a dead engine is found by its pid
        # A text can reach a state in which its grammar allows no token. The server notices it only then.
        found = answer.status >= 500 or (streamed and answer.code != "grammar_error")
        return f"{said} {answer.code}" if found else said, found

    def _look_at_engine(self, server: Server, shape: str, number: int, request: Hostile) -> None:
        """If the engine died, keeps all requests that ran, and the end of the server's log. The cause can
        also be a request whose client had disconnected."""
        engine = engine_of(server)
        if engine == self.engine:
            return
        if self.engine is not None:  # otherwise a new engine has started
            for other, suspect in {number: request, **self.running}.items():
                self._keep(shape, other, suspect, "the engine died")
            log = server.log.read_text(errors="replace")[-5000:]
            print(log, file=sys.stderr, flush=True)
            if self.keep is not None:
                (self.keep / f"{self.seed}-{number}.log").write_text(log, encoding="utf-8")
        self.engine = engine

    def _keep(self, shape: str, number: int, request: Hostile, outcome: str) -> None:
        finding = {"seed": self.seed, "number": number, "server": shape, "outcome": outcome}
        self.found.append(finding)
        print(f"found: {finding}", file=sys.stderr, flush=True)
        if self.keep is not None:
            self.keep.mkdir(parents=True, exist_ok=True)
            whole = {**finding, "path": request.path, "leaves": request.leaves, "body": request.body}
            file = self.keep / f"{self.seed}-{number}.json"
            file.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model-path", default=EMBEDDED)
    parser.add_argument("--seconds", type=float, default=3600.0, help="in all (default: an hour)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first request")
    parser.add_argument("--only", type=int, nargs="+", help="numbers of requests to send again")
    parser.add_argument("--shape", choices=SHAPES, nargs="+", default=list(SHAPES), help="of drafts")
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for an answer (default: 60)")
    parser.add_argument("--keep", type=Path, help="folder for requests that were found")
    parser.add_argument("--output-dir", type=Path, help="folder for the result")
    args = parser.parse_args()
    fuzz = Fuzz(args.seed, args.limit, args.keep)
    numbers = itertools.count(args.first)
    shapes: dict[str, Any] = {}
    for shape in args.shape:
        options = ["--model-path", args.model_path, "--threads", "1", "--shutdown-timeout", "1"]
        with Server([*options, *SHAPES[shape]]) as server:
            until = time.monotonic() + args.seconds / len(args.shape)
            mine = numbers if args.only is None else iter(args.only)
            shapes[shape] = asyncio.run(fuzz.play(server, shape, mine, until, args.clients))
    complaints = [line for each in shapes.values() for line in each["complaints"]]
    result = {
        "model": args.model_path,
        "seed": args.seed,
        "seconds": args.seconds,
        "requests": sum(fuzz.outcomes.values()),
        "next": next(numbers),
        "held": not fuzz.found and not complaints,
        "outcomes": dict(sorted(fuzz.outcomes.items())),
        "servers": shapes,
        "found": fuzz.found,
    }
    tell("fuzz-hostile-requests", result, args.output_dir)
    return 0 if result["held"] else 1


if __name__ == "__main__":
    sys.exit(main())
