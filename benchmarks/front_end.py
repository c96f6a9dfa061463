"""Measures how many streamed tokens per second the server's process can pass on. The engine is scripted and
the client takes little CPU time. With --vllm, vLLM's server is measured too, in turns.

python benchmarks/front_end.py                                            # some 3 minutes
python benchmarks/front_end.py --vllm .peers/vllm                         # peers/install.sh makes this
python benchmarks/front_end.py --lead 8 --api chat --streams 256
python benchmarks/front_end.py --tree before=../before after=. --rounds 5   # two source trees in turns

The results for each number of streams are tokens per second; tokens per second of CPU time of the server's
process, which depends less on other work on the machine; the event loop's share of that time; events and
bytes per token. The engine is ahead of the clients by at most `--lead` steps. With 1, a step is sent when the
clients have received all of the step before, so that tokens of two steps are never sent together.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import struct
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "front"))

import streams
from last_line import tell
from scripted import CHARS, CONTEXT, script
from scripted_steps import Brake
from servers import MODEL_NAME, Load, nextn_server, vllm_server

from nextn.bench.machine import this_machine
from nextn.config import EMBEDDED, model_folder
from nextn.tokenizer.tokenizer import Tokenizer

HERE = Path(__file__).parent
SETTINGS = ("tokens", "per_step", "step_ms", "api", "rounds")
PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}


def cpu_seconds(pid: int) -> tuple[float, float]:
    """CPU seconds of a process so far: (all threads, only the main thread)."""
    each = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        each[int(task.name)] = int((task / "schedstat").read_text().split()[0]) / 1e9
    return sum(each.values()), each[pid]


def named_tree(text: str) -> tuple[str, Path]:
    """Parses a source tree: NAME=PATH, or only PATH."""
    name, _, path = text.rpartition("=")
    return name or Path(path).resolve().name, Path(path)


def one_run(side: Path, args: argparse.Namespace, lead: int, count: int, text: str) -> dict[str, float]:
    """Measures one server with one load. side: a source tree of nextn, or vLLM's virtual environment."""
    with tempfile.TemporaryDirectory() as folder:
        brake = Path(folder) / "brake"
        brake.write_bytes(struct.pack("q", 0))
        load = Load(args.model_path, brake, count, lead, args.step_ms, args.per_step)
        if side == args.vllm:
            started = vllm_server(side, load, scripted_tokens(args.model_path))
        else:
            started = nextn_server(side, load, args.server_options.split())
        shared = Brake(brake)
        with started as (pid, address):
            body: dict[str, object] = {"max_tokens": args.tokens, "stream": True, "ignore_eos": True}
            body |= {"model": MODEL_NAME}
            body |= (
                {"prompt": "a"}
                if args.api == "completions"
                else {"messages": [{"role": "user", "content": "a"}]}
            )
            message = streams.request(address, PATHS[args.api], body)
            marks: list[tuple[float, float]] = []
            first, last, texts = streams.run(
                address,
                message,
                count,
                lambda n: shared.set(n // CHARS),
                lambda: marks.append(cpu_seconds(pid)),
            )
    wrong = [found for found in texts if found != text]
    assert not wrong, f"{len(wrong)} texts are wrong: {wrong[0][:200]!r} is not {text[:200]!r}"
    tokens = (last.characters - first.characters) / CHARS
    seconds, cpu = last.at - first.at, marks[1][0] - marks[0][0]
    return {
        "tokens_per_second": tokens / seconds,
        "tokens_per_cpu_second": tokens / cpu,
        "cpu_us_per_event": cpu * 1e6 / (last.events - first.events),
        "server_cores": cpu / seconds,
        "loop_share": (marks[1][1] - marks[0][1]) / cpu,
        "tokens_per_event": tokens / (last.events - first.events),
        "bytes_per_token": (last.bytes - first.bytes) / tokens,
    }


def summed(runs: list[dict[str, float]]) -> dict[str, float]:
    return {name: float(f"{median(run[name] for run in runs):.4g}") for name in runs[0]}


def scripted_tokens(model_path: str) -> list[int]:
    return script(Tokenizer.from_folder(model_folder(model_path)))


def expected(model_path: str, tokens: int) -> str:
    tokenizer = Tokenizer.from_folder(model_folder(model_path))
    each = script(tokenizer)
    return tokenizer.decode((each * (tokens // len(each) + 1))[:tokens])


def main() -> int:
    parser = argparse.ArgumentParser(description=re.split(r"\n\n", __doc__ or "")[0])
    parser.add_argument("--model-path", default=EMBEDDED, help="checkpoint folder with the tokenizer")
    parser.add_argument(
        "--tree", nargs="+", type=named_tree, default=[("", HERE.parent)], help="trees, NAME=PATH"
    )
    parser.add_argument("--streams", nargs="+", type=int, default=[1, 16, 64, 256])
    parser.add_argument("--tokens", type=int, default=1000, help="tokens of each stream (default: 1000)")
    parser.add_argument("--per-step", type=int, default=1, help="tokens of a stream at each step")
    parser.add_argument(
        "--lead", nargs="+", type=int, default=[1, 8], help="steps ahead of clients (default: 1 8)"
    )
    parser.add_argument("--step-ms", type=float, default=0.0, help="least duration of a step (default: 0)")
    parser.add_argument("--api", choices=PATHS, default="completions")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--vllm", type=Path, metavar="VENV", help="vLLM's virtual environment")
    parser.add_argument("--server-options", default="", help="options of nextn serve, as one word")
    parser.add_argument("--output-dir", type=Path, help="folder for the result")
    args = parser.parse_args()
    assert max(args.streams) * args.tokens < CONTEXT * 256
    text = expected(args.model_path, args.tokens)
    sides: dict[str, Path] = dict(args.tree)
    if args.vllm is not None:
        sides = {name or "nextn": tree for name, tree in sides.items()} | {"vllm": args.vllm}
    found: dict[str, Any] = {name: {} for name in sides}
    for lead in args.lead:
        for count in args.streams:
            runs: dict[str, list[dict[str, float]]] = {name: [] for name in found}
            for _ in range(args.rounds):
                for name, side in sides.items():
                    runs[name].append(one_run(side, args, lead, count, text))
            for name, each in runs.items():
                found[name].setdefault(f"lead {lead}", {})[str(count)] = summed(each)
                print(f"{name}, lead {lead}, {count} streams: {summed(each)}", file=sys.stderr, flush=True)
    settings = {name: getattr(args, name) for name in SETTINGS}
    result: dict[str, Any] = {"settings": settings, "machine": dataclasses.asdict(this_machine())}
    result["streams"] = found if len(found) > 1 else next(iter(found.values()))
    tell("front-end", result, args.output_dir)
    return 0


if __name__ == "__main__":
    sys.exit(main())
