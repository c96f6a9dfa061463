"""Kills and stops ranks of a server in every phase, and checks that it always serves again.

    python benchmarks/kill_ranks.py [--kills 100] [--phase any] [--stops 0.25] [--tp-size 2] [--dp-size 1]
                                    [--groups 1] [--seed 0] [--output FOLDER [--add]]

Clients send requests without pause; half of them stream. Again and again one process of an engine, rank 0
included, gets SIGKILL or SIGSTOP. The phases (--phase: one, several with commas, or `any` for all in turn):

    idle      no request runs
    prefill   a stream has been sent and has no token yet: prompts are long, and computed 64 tokens a step
    verify    a stream has its first token, but not its last
    load      a first process was killed in the phase prefill, and the new ones load

Requirements: every request ends, with the text of an undisturbed server or with an error; the engine is ready
again within 10 seconds, and answers before the next kill; no process of the previous engine is left; requests
to other replicas (--dp-size) all get their texts. At the end no process is left, and nothing new in /dev/shm.
The exit code is 1 if a text differs, a request has no answer, another replica fails, or something is left.
The last line is JSON.

By default a server exits after five restarts in ten minutes (--max-engine-restarts); this one may restart its
engines any number of times. --groups: the number of attention groups that the ranks form, which share the
experts (--enable-dp-attention). If one rank dies, all groups end.
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
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import httpx
from depth_claims import positive, run_script
from last_line import result_name, tell

sys.path.insert(0, str(Path(__file__).parent / "faults"))

from server import Server, children, runs

from nextn.bench.machine import this_machine
from nextn.bench.prompts import heldout_prompts
from nextn.config import EMBEDDED

PHASES = ("load", "idle", "prefill", "verify")
CLIENTS = 4  # at least; two for each replica
READY_SECONDS = 10.0
LOAD_SECONDS = 3.0  # from the start of a rank's process until it serves, about
SHORT = {"prompt": "def read(path):\n", "max_tokens": 96}
LONG = {"prompt": "".join(heldout_prompts(12)), "max_tokens": 2}
SHM = Path("/dev/shm")
RANK = b"nextn.engine.tensor_rank"  # in the command line of every rank except rank 0


class Kill(NamedTuple):
    phase: str
    signal: str
    replica: int
    rank: int
    seconds: float  # until the engine was ready again


class Client:
    """A thread that sends requests to one replica without pause. body: of the next ones; None: none.
    stage: what the server does for a stream of it."""

    def __init__(self, url: str, replica: int | None, streams: bool, texts: Mapping[str, str]) -> None:
        self._http = httpx.Client(base_url=url, timeout=60)  # one client: making it takes long
        self._routed = {} if replica is None else {"routed_dp_rank": replica}
        self._texts, self._streams = texts, streams
        self.body: dict[str, Any] | None = SHORT
        self.stage, self.busy = "idle", False
        self.answers = self.errors = 0
        self.wrong: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._stop.set()

    def join(self) -> None:
        self._thread.join(60)
        if self._thread.is_alive():
            self.wrong.append("a request did not end within a minute")

    def _run(self) -> None:
        while not self._stop.is_set():
            body = self.body
            self.busy = body is not None
            if body is None:
                time.sleep(0.02)
                continue
            try:
                found = self._answer(body)
            except httpx.HTTPError as e:
                self.wrong.append(f"no answer: {e!r}")
                continue
            finally:
                self.stage = "idle"
            if found is None:
                self.errors += 1
                time.sleep(0.5)
            elif found == self._texts[body["prompt"]]:
                self.answers += 1
            else:
                self.wrong.append(f"another text: {found!r}")

    def _answer(self, body: Mapping[str, Any]) -> str | None:
        if not self._streams:
            return ask(self._http, body, **self._routed)
        text, sent = "", asked(body, stream=True, **self._routed)
        self.stage = "prefill" if body is LONG else "idle"
        with self._http.stream("POST", "/v1/completions", json=sent) as answer:
            if answer.status_code != 200:
                return None
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line[6:])
                    if "error" in event:
                        return None
                    text += "".join(choice["text"] for choice in event["choices"])
                    self.stage = "verify"
        return text


def asked(body: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {**body, "temperature": 0, "ignore_eos": True, **more}


def ask(http: httpx.Client, body: Mapping[str, Any], **more: Any) -> str | None:
    """Sends a request and returns the text, or None for an error."""
    answer = http.post("/v1/completions", json=asked(body, **more))
    return answer.json()["choices"][0]["text"] if answer.status_code == 200 else None


class Replicas:
    """The processes of the server's engines. A replica is one engine, or those of all groups."""

    def __init__(self, server: Server, args: argparse.Namespace) -> None:
        self._server, self._http = server, httpx.Client(base_url=server.url, timeout=60)
        self.number, self._processes = args.dp_size, args.tp_size
        engines = sorted(server.pids()[1:])
        self._engines = [engines[i :: self.number] for i in range(self.number)]
        self.seen: set[int] = set()  # every process so far

    def ranks(self, replica: int) -> list[int]:
        """Processes of a replica that have started, those of engines (each is a rank 0) first."""
        others = {pid for i, pids in enumerate(self._engines) if i != replica for pid in pids}
        engines = [pid for pid in sorted(self._server.pids()[1:]) if pid not in others]
        self._engines[replica] = engines
        found = engines + [rank for pid in engines for rank in sorted(children(pid, RANK))]
        self.seen.update(found)
        return found

    def new(self, replica: int, before: list[int]) -> list[int]:
        return [pid for pid in self.ranks(replica) if pid not in before]

    def is_up(self, replica: int) -> bool:
        loads = self._http.get("/v1/loads?include=core").json()["loads"]
        return all(load["engine_up"] for load in (loads if self.number == 1 else [loads[replica]]))

    def ready_again(self, replica: int, before: list[int]) -> bool:
        """Whether the replica serves, and with new processes only."""
        gone = not any(map(runs, before))
        return gone and len(self.new(replica, before)) == self._processes and self.is_up(replica)


def waiting(what: str, seconds: float = 120.0) -> Iterator[None]:
    """Pauses between checks. Raises AssertionError at the end."""
    begin = time.monotonic()
    while time.monotonic() - begin < seconds:
        yield
        time.sleep(0.1)
    raise AssertionError(f"{what} did not happen within {seconds:g} s")


def wait_until(true: Callable[[], object], what: str) -> None:
    for _ in waiting(what):
        if true():
            return


class Killer:
    """clients: client i sends to replica i modulo their number; the first of each replica streams."""

    def __init__(self, replicas: Replicas, clients: list[Client], rng: random.Random, stops: float) -> None:
        self._replicas, self._clients, self._rng, self._stops = replicas, clients, rng, stops

    def kill(self, phase: str) -> Kill:
        """Waits for the phase, kills or stops a process, and waits until its replica answers again."""
        replica = self._rng.randrange(self._replicas.number)
        own = self._clients[replica :: self._replicas.number]
        others = [client for client in self._clients if client not in own]
        failed = sum(client.errors for client in others)
        gone, pids = (
            self._loading(replica, own) if phase == "load" else ([], self._reach(phase, replica, own))
        )
        rank = self._rng.randrange(len(pids))
        how = signal.SIGSTOP if self._rng.random() < self._stops else signal.SIGKILL
        os.kill(pids[rank], how)
        begin = time.monotonic()
        wait_until(lambda: self._replicas.ready_again(replica, gone + pids), "a new start")
        seconds = time.monotonic() - begin
        for client in own:
            client.body = SHORT
        answers = sum(client.answers for client in own)
        wait_until(lambda: sum(client.answers for client in own) > answers, "an answer")
        if sum(client.errors for client in others) > failed:
            others[0].wrong.append(f"requests to other replicas failed with replica {replica}")
        return Kill(phase, how.name, replica, rank, round(seconds, 2))

    def _reach(self, phase: str, replica: int, own: list[Client]) -> list[int]:
        """Waits for a random moment of the phase. Returns the replica's processes."""
        for client in own:
            client.body = {"idle": None, "prefill": LONG, "verify": SHORT}[phase]
        for _ in waiting(phase):
            time.sleep(self._rng.uniform(0.0, 0.3))
            reached = not any(client.busy for client in own) if phase == "idle" else own[0].stage == phase
            if reached:
                break
        return self._replicas.ranks(replica)

    def _loading(self, replica: int, own: list[Client]) -> tuple[list[int], list[int]]:
        """Kills a process, and waits for a random moment while new ones load. Returns the processes of
        before, and those that load."""
        gone: list[int] = []
        for _ in waiting("load"):
            pids = self._reach("prefill", replica, own)
            os.kill(self._rng.choice(pids), signal.SIGKILL)
            gone += pids
            wait_until(partial(self._replicas.new, replica, gone), "a new process")
            time.sleep(self._rng.uniform(0.0, LOAD_SECONDS))
            loading = self._replicas.new(replica, gone)
            if loading and not self._replicas.is_up(replica):
                return gone, loading
        raise AssertionError


def summary(kills: list[Kill]) -> dict[str, dict[str, float]]:
    """Of each phase."""
    found = {}
    for phase in PHASES:
        seconds = [kill.seconds for kill in kills if kill.phase == phase]
        if seconds:
            found[phase] = {
                "kills": len(seconds),
                "median_seconds": median(seconds),
                "most_seconds": max(seconds),
            }
    return found


def phases(text: str) -> list[str]:
    names = list(PHASES) if text == "any" else text.split(",")
    if unknown := [name for name in names if name not in PHASES]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r}: choose from {', '.join(PHASES)}, or any")
    return names


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=positive, default=100)
    parser.add_argument("--phase", type=phases, default=list(PHASES), help="see above", metavar="PHASES")
    parser.add_argument("--stops", type=float, default=0.25, help="share of SIGSTOP, the rest is SIGKILL")
    parser.add_argument("--tp-size", type=positive, default=2)
    parser.add_argument("--dp-size", type=positive, default=1, help="number of replicas")
    parser.add_argument("--groups", type=positive, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="folder for the result", metavar="FOLDER")
    parser.add_argument(
        "--add", action="store_true", help="add to today's result in the folder, if there is one"
    )
    args = parser.parse_args()
    if min(args.groups, args.dp_size) > 1:
        parser.error("--dp-size with --groups: groups are no replicas")
    rng, left = random.Random(args.seed), {path.name for path in SHM.glob("*")}
    options = ["--model-path", EMBEDDED, "--tp-size", str(args.tp_size), "--threads", "1"]
    options += ["--chunked-prefill-size", "64", "--max-running-requests", "8", "--disable-radix-cache"]
    if args.groups > 1:
        options += ["--enable-dp-attention", "--dp-size", str(args.groups), "--ep-size", str(args.tp_size)]
    elif args.dp_size > 1:
        options += ["--dp-size", str(args.dp_size)]
    kills: list[Kill] = []
    with Server(options) as server:
        with httpx.Client(base_url=server.url, timeout=60) as http:
            texts = {body["prompt"]: ask(http, body) for body in (SHORT, LONG)}
        assert None not in texts.values()
        replicas, number = Replicas(server, args), args.dp_size
        clients = [
            Client(server.url, i % number if number > 1 else None, i // number % 2 == 0, texts)
            for i in range(max(CLIENTS, 2 * number))
        ]
        killer = Killer(replicas, clients, rng, args.stops)
        for i in range(args.kills):
            kills.append(kill := killer.kill(args.phase[i % len(args.phase)]))
            of = f"replica {kill.replica}, " if number > 1 else ""
            print(f"{i + 1}: {kill.phase}, {of}rank {kill.rank}, {kill.signal}: ready again after "
                  f"{kill.seconds:.1f} s", flush=True)  # fmt: skip
        for client in clients:
            client.end()
        for client in clients:
            client.join()
    wrong = [what for client in clients for what in client.wrong]
    wrong += [f"{name} is left in {SHM}" for name in {p.name for p in SHM.glob("*")} - left]
    wrong += [f"process {pid} is left" for pid in replicas.seen if runs(pid)]
    answers, errors = sum(client.answers for client in clients), sum(client.errors for client in clients)
    theme = "kill-groups" if args.groups > 1 else "kill-replicas" if number > 1 else "kill-ranks"
    earlier = args.output and args.output / f"{result_name(theme)}.json"
    if args.add and earlier and earlier.exists():
        before = json.loads(earlier.read_text())
        kills = [*(Kill(**kill) for kill in before["each"]), *kills]
        answers, errors = before["answers"] + answers, before["errors"] + errors
        wrong = before["wrong"] + wrong
    took = [kill.seconds for kill in kills]
    late = [t for t in took if t > READY_SECONDS]
    print(f"{answers} answers, {errors} errors; ready again after {median(took):.1f} s "
          f"(median), {max(took):.1f} s at most; {len(late)} of {len(took)} took over {READY_SECONDS:g} s; "
          f"{len(wrong)} wrong", *wrong[:5], sep="\n")  # fmt: skip
    result = {
        "kills": len(kills), "tp_size": args.tp_size, "dp_size": args.dp_size, "groups": args.groups,
        "answers": answers, "errors": errors,
        "median_seconds": median(took), "most_seconds": max(took), "late": len(late), "wrong": wrong,
        "phases": summary(kills), "each": [kill._asdict() for kill in kills],
        "machine": dataclasses.asdict(this_machine()),
    }  # fmt: skip
    tell(theme, result, args.output)
    return 1 if wrong else 0


if __name__ == "__main__":
    run_script(main)
