"""Kills and stops ranks of a server at random moments, and checks that it always serves again.

    python benchmarks/kill_ranks.py [--kills 100] [--tp-size 2] [--groups 1] [--seed 0] [--output FOLDER]

Clients send requests without pause; some of them stream. At random times one process of the engine, rank 0
included, gets SIGKILL or SIGSTOP, while it works or while it is idle. Requirements: every request ends, with
the text of an undisturbed server or with an error; the server is ready again within 10 seconds, and answers
before the next kill; no process of the previous engine is left. At the end nothing new is left in /dev/shm.
The exit code is 1 if a text differs, a request has no answer, or something is left. The last line is JSON.

--groups: the number of attention groups that the ranks form, which share the experts (--enable-dp-attention).
If one rank dies, all groups end.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from statistics import median

import httpx
from depth_claims import positive, run_script
from last_line import tell

sys.path.insert(0, str(Path(__file__).parent / "faults"))

from server import Server, children, runs

from nextn.bench.machine import this_machine
from nextn.config import EMBEDDED

CLIENTS = 4
READY_SECONDS = 10.0
BODY = {"prompt": "def read(path):\n", "max_tokens": 96, "temperature": 0, "ignore_eos": True}
SHM = Path("/dev/shm")
RANK = b"nextn.engine.tensor_rank"  # in the command line of every rank except rank 0


class Clients:
    """Threads that send requests without pause, unless `pause` is set."""

    def __init__(self, url: str, text: str) -> None:
        self.url, self.text = url, text
        self.answers = self.errors = 0
        self.wrong: list[str] = []
        self.pause, self.stop = threading.Event(), threading.Event()
        self.threads = [threading.Thread(target=self._run, args=(i,), daemon=True) for i in range(CLIENTS)]
        for thread in self.threads:
            thread.start()

    def until_answered(self) -> None:
        """Waits for one more text, because a kill before the next answer would test little. Raises
        AssertionError after a minute."""
        begin, before = time.monotonic(), self.answers
        while self.answers == before:
            assert time.monotonic() - begin < 60, f"no answer within a minute; {self.wrong[:5]}"
            time.sleep(0.02)

    def end(self) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join(60)
            if thread.is_alive():
                self.wrong.append("a request did not end within a minute")

    def _run(self, number: int) -> None:
        client = httpx.Client(base_url=self.url, timeout=60)  # one client: making it takes long
        while not self.stop.is_set():
            if self.pause.is_set():
                time.sleep(0.05)
                continue
            try:
                found = stream(client) if number % 2 else ask(client)
            except httpx.HTTPError as e:
                self.wrong.append(f"no answer: {e!r}")
                continue
            if found is None:
                self.errors += 1
                time.sleep(0.1)
            elif found == self.text:
                self.answers += 1
            else:
                self.wrong.append(f"another text: {found!r}")


def ask(client: httpx.Client) -> str | None:
    """Sends a request and returns the text, or None for an error."""
    answer = client.post("/v1/completions", json=BODY)
    return answer.json()["choices"][0]["text"] if answer.status_code == 200 else None


def stream(client: httpx.Client) -> str | None:
    text = ""
    with client.stream("POST", "/v1/completions", json=BODY | {"stream": True}) as answer:
        if answer.status_code != 200:
            return None
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                event = json.loads(line[6:])
                if "error" in event:
                    return None
                text += "".join(choice["text"] for choice in event["choices"])
    return text


def ranks(server: Server) -> list[int]:
    """The engine's processes, rank 0 first."""
    engines = server.pids()[1:]
    return engines + [rank for pid in engines for rank in children(pid, RANK)]


def until_ready(server: Server, before: list[int]) -> float:
    """Waits until the server serves with new processes, and returns the seconds. Raises AssertionError after
    two minutes."""
    begin, client = time.monotonic(), httpx.Client(base_url=server.url)
    while not (
        not any(map(runs, before))
        and len(set(ranks(server)) - set(before)) == len(before)
        and client.get("/readyz").status_code == 200
    ):
        assert time.monotonic() - begin < 120, "the server is not ready again after two minutes"
        time.sleep(0.05)
    return time.monotonic() - begin


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=positive, default=100)
    parser.add_argument("--tp-size", type=positive, default=2)
    parser.add_argument("--groups", type=positive, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="folder for the result", metavar="FOLDER")
    args = parser.parse_args()
    rng, left = random.Random(args.seed), {path.name for path in SHM.glob("*")}
    took: list[float] = []
    options = ["--model-path", EMBEDDED, "--tp-size", str(args.tp_size), "--threads", "1"]
    if args.groups > 1:
        options += ["--enable-dp-attention", "--dp-size", str(args.groups), "--ep-size", str(args.tp_size)]
    with Server(options) as server:
        text = ask(httpx.Client(base_url=server.url, timeout=60))
        assert text is not None
        clients = Clients(server.url, text)
        for kill in range(args.kills):
            if rng.random() < 0.2:
                clients.pause.set()  # an idle engine
            time.sleep(rng.uniform(0.0, 1.0))
            pids = ranks(server)
            how = signal.SIGSTOP if rng.random() < 0.2 else signal.SIGKILL
            rank = rng.randrange(len(pids))
            os.kill(pids[rank], how)
            took.append(until_ready(server, pids))
            clients.pause.clear()
            clients.until_answered()
            print(f"{kill + 1}: rank {rank}, {how.name}: ready again after {took[-1]:.1f} s", flush=True)
        clients.end()
    wrong = clients.wrong + [f"{name} is left in {SHM}" for name in {p.name for p in SHM.glob("*")} - left]
    late = [t for t in took if t > READY_SECONDS]
    print(f"{clients.answers} answers, {clients.errors} errors; ready again after {median(took):.1f} s "
          f"(median), {max(took):.1f} s at most; {len(late)} of {len(took)} took over {READY_SECONDS:g} s; "
          f"{len(wrong)} wrong", *wrong[:5], sep="\n")  # fmt: skip
    result = {
        "kills": args.kills, "tp_size": args.tp_size, "groups": args.groups,
        "answers": clients.answers, "errors": clients.errors,
        "median_seconds": median(took), "most_seconds": max(took), "late": len(late), "wrong": wrong,
        "machine": dataclasses.asdict(this_machine()),
    }  # fmt: skip
    tell("kill-ranks", result, args.output)
    return 1 if wrong else 0


if __name__ == "__main__":
    run_script(main)
