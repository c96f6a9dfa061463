"""Kills prefill servers every few seconds while many clients send requests, and checks all answers.

    python benchmarks/kill_prefill.py [--clients 256] [--seconds 60] [--prefill 2] [--output FOLDER]

Each client sends one request after another, to a random prefill server and to the decode server, as a
gateway does. Prompts have 500 to 1,000 tokens of source code. The decode server has no prefix cache, so each
request fetches all pages of its prompt. Half of the requests are sampled with a seed, the others are greedy.
Every few seconds a prefill server, or only its engine, gets SIGKILL, or SIGSTOP and later SIGKILL, and is
started again.

No answer may be an error, and every text must equal that of a plain server, which computes all of them
first. Afterwards no KV pages may be in use. The exit code is 1 if that fails. The last line is JSON. In it,
`partial` is the number of prompts of which some pages had arrived when the transfer failed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import os
import random
import re
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
from apart import ROOMS
from depth_claims import positive, run_script
from disaggregation import free_port
from last_line import tell

sys.path.insert(0, str(Path(__file__).parent / "faults"))

from server import children

from nextn.bench.local_server import LocalServer, ended_like_ctrl_c
from nextn.bench.machine import this_machine
from nextn.bench.prompts import all_heldout_prompts
from nextn.bench.totals import totals
from nextn.config import EMBEDDED, EngineConfig, model_folder
from nextn.tokenizer.tokenizer import Tokenizer

TOKENS = range(500, 1001)  # of a prompt
TIMEOUT = 300.0  # seconds for a request
PAGE = EngineConfig(EMBEDDED).page_size  # tokens
FELL_BACK = re.compile(r"; (\d+) of its prompt's tokens are here, and \d+ are computed here")


class Prefill:
    """A prefill server that restarts after it was killed, on the same bootstrap port."""

    def __init__(self, options: list[str], folder: Path, number: int) -> None:
        self.port = free_port()
        self.options = [*options, "--disaggregation-mode", "prefill"]
        self.options += ["--disaggregation-bootstrap-port", str(self.port)]
        self.folder, self.number, self.starts = folder, number, 0
        self.server = self._start()
        self.server.wait_ready()
        self.restarting: asyncio.Task[None] | None = None

    def _start(self) -> LocalServer:
        self.starts += 1
        log = self.folder / f"prefill-{self.number}-{self.starts}.log"
        return LocalServer("prefill", self.options, log)

    async def kill(self, rng: random.Random) -> str:
        """Kills the server, or its engine; returns a description."""
        engine = rng.random() < 0.3
        pid = server = self.server.pid
        if engine and (engines := children(server, b"spawn_main")):
            pid = engines[0]
        stopped = rng.random() < 0.3
        if stopped:
            os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(3.0)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        how = f"{'engine' if pid != server else 'server'}, {'stopped, then killed' if stopped else 'killed'}"
        if pid == server:
            self.restarting = asyncio.create_task(self._restart())
        return how

    async def _restart(self) -> None:
        await asyncio.to_thread(self.server.stop)
        self.server = self._start()
        await asyncio.to_thread(self.server.wait_ready)

    async def until_ready(self) -> None:
        if self.restarting is not None:
            await self.restarting


@dataclasses.dataclass(frozen=True)
class Job:
    """body: the request. text: its text from a plain server."""

    body: dict[str, Any]
    text: str


def bodies(count: int, max_tokens: int) -> list[dict[str, Any]]:
    """Requests whose prompts begin with different tokens."""
    tokenizer, parts = Tokenizer.from_folder(model_folder(EMBEDDED)), all_heldout_prompts()
    rng, made = random.Random(0), []
    for i in range(min(count, len(parts))):
        tokens = tokenizer.encode("\n".join(parts[i:] + parts[:i]))[: rng.choice(TOKENS)]
        made.append({"prompt": tokens, "max_tokens": max_tokens, "temperature": i % 2, "seed": i,
                     "ignore_eos": True})  # fmt: skip
    return made


async def jobs_of(options: list[str], log: Path, count: int, max_tokens: int) -> list[Job]:
    """Has a plain server compute all texts."""
    made = []
    with LocalServer("plain", options, log) as plain:
        await asyncio.to_thread(plain.wait_ready)
        async with httpx.AsyncClient(timeout=TIMEOUT) as client:
            for body in bodies(count, max_tokens):
                answer = await client.post(plain.url + "/v1/completions", json=body)
                made.append(Job(body, answer.json()["choices"][0]["text"]))
    return made


class Load:
    def __init__(self, decode: LocalServer, prefills: list[Prefill], jobs: list[Job]) -> None:
        self.decode, self.prefills, self.jobs = decode, prefills, jobs
        self.answers = 0
        self.wrong: list[str] = []
        self.ending = False

    async def client(self, number: int) -> None:
        rng = random.Random(number)
        async with httpx.AsyncClient(timeout=TIMEOUT) as client:
            while not self.ending:
                await self._ask(client, rng)

    async def _ask(self, client: httpx.AsyncClient, rng: random.Random) -> None:
        job, prefill = rng.choice(self.jobs), rng.choice(self.prefills)
        remote = {"bootstrap_host": "127.0.0.1", "bootstrap_port": prefill.port}
        body = job.body | remote | {"bootstrap_room": rng.randrange(ROOMS)}
        first = asyncio.create_task(self._prefill(client, prefill.server.url, body))
        try:
            answer = await client.post(self.decode.url + "/v1/completions", json=body)
            if answer.status_code != 200:
                self.wrong.append(f"{answer.status_code}: {answer.text[:200]}")
            elif (text := answer.json()["choices"][0]["text"]) != job.text:
                self.wrong.append(f"another text: {text!r}, not {job.text!r}")
            else:
                self.answers += 1
        except httpx.HTTPError as e:
            self.wrong.append(f"no answer: {e!r}")
        finally:
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)

    async def _prefill(self, client: httpx.AsyncClient, url: str, body: dict[str, Any]) -> None:
        with contextlib.suppress(httpx.HTTPError):
            await client.post(url + "/v1/completions", json=body)


async def run(decode: LocalServer, prefills: list[Prefill], jobs: list[Job], args: Any) -> dict[str, Any]:
    rng, client = random.Random(args.seed), httpx.AsyncClient(timeout=TIMEOUT)
    load = Load(decode, prefills, jobs)
    clients = [asyncio.create_task(load.client(number)) for number in range(args.clients)]
    begin, kills = time.monotonic(), 0
    while time.monotonic() - begin < args.seconds:
        await asyncio.sleep(rng.uniform(0.5, args.every))
        prefill = rng.choice(prefills)
        await prefill.until_ready()
        how = await prefill.kill(rng)
        kills += 1
        print(f"{time.monotonic() - begin:.0f} s: {how}; {load.answers} answers", file=sys.stderr, flush=True)
    for prefill in prefills:
        await prefill.until_ready()
    load.ending = True
    await asyncio.gather(*clients)
    await asyncio.sleep(2 * args.timeout)  # pages that no decode server will fetch are released after that
    used = {}
    for name, server in (("decode", decode), *((f"prefill {p.number}", p.server) for p in prefills)):
        found = totals((await client.get(server.url + "/metrics")).text)
        used[name] = found["num_used_tokens"]
        if name == "decode":
            counted = {key: value for key, value in found.items() if key.startswith("transfer_")}
    wrong = load.wrong + [f"{name}: {n} tokens of the KV cache in use" for name, n in used.items() if n]
    await client.aclose()
    arrived = [int(tokens) for tokens in FELL_BACK.findall(decode.log.read_text(errors="replace"))]
    return {
        "kills": kills, "answers": load.answers, "wrong": wrong, "transfers": counted,
        "pages_per_transfer": (counted["transfer_pages"] - sum(-(-n // PAGE) for n in arrived))
        / max(1.0, counted["transfer_finished"]),
        "partial": sum(n > 0 for n in arrived),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--clients", type=positive, default=256)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--prefill", type=positive, default=2, help="prefill servers")
    parser.add_argument("--every", type=float, default=4.0, help="maximum seconds between kills")
    parser.add_argument("--prompts", type=positive, default=64, help="different requests, 64 at most")
    parser.add_argument("--max-tokens", type=positive, default=24)
    parser.add_argument("--timeout", type=float, default=2.0, help="--disaggregation-timeout")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="folder for the result")
    args = parser.parse_args()
    options = ["--model-path", EMBEDDED, "--threads", "1", "--log-level", "warning"]
    options += ["--disaggregation-timeout", str(args.timeout), "--max-engine-restarts", "1000"]
    options += ["--max-queued-requests", "1024"]
    with tempfile.TemporaryDirectory() as name, ended_like_ctrl_c(), contextlib.ExitStack() as stack:
        folder = Path(name)
        jobs = asyncio.run(jobs_of(options, folder / "plain.log", args.prompts, args.max_tokens))
        of_decode = [*options, "--disaggregation-mode", "decode", "--disable-radix-cache"]
        decode = LocalServer("decode", of_decode, folder / "decode.log")
        stack.enter_context(decode)
        prefills = [Prefill(options, folder, number) for number in range(args.prefill)]
        for prefill in prefills:
            stack.callback(lambda prefill=prefill: prefill.server.stop())
        decode.wait_ready()
        result = asyncio.run(run(decode, prefills, jobs, args))
    transfers, wrong = result["transfers"], result["wrong"]
    print(f"{result['kills']} kills, {result['answers']} answers, {len(wrong)} wrong; "
          f"{transfers['transfer_finished']:.0f} prompts came from prefill servers, each in "
          f"{result['pages_per_transfer']:.0f} pages; {transfers['transfer_fallbacks']:.0f} were computed by "
          f"the decode server instead, {result['partial']} of them from the pages on that had arrived",
          *wrong[:5], sep="\n")  # fmt: skip
    result["load"] = {name: value for name, value in vars(args).items() if name != "output"}
    result["machine"] = dataclasses.asdict(this_machine())
    tell("kill-prefill", result, args.output)
    return 1 if wrong else 0


if __name__ == "__main__":
    run_script(main)
