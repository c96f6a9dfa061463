"""Compares other load clients with `nextn bench serve`, on our server and with the same load.

    python benchmarks/interop/environments.py sglang vllm guidellm      # missing ones are left out
    python benchmarks/interop/run.py                                    # about 5 minutes with all three
    python benchmarks/interop/run.py --rounds 1 --num-prompts 8 --output-len 32       # a trial
    python benchmarks/interop/run.py --output benchmarks/results/interop_laptop_2026-01-31.json

There is one server on the embedded model, without a prefix cache, so that runs do not depend on earlier ones.
In every round each client takes a turn, and the first one changes. Each result is divided by the server's own
count in that run (see comparison.py). A client agrees with ours if its ratio differs by at most 5 % plus the
noise. The exit code is 1 if one differs, and 2 if no other client is installed. The last line is JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clients import CLIENTS, Client, Load, Target
from comparison import Run, compare, table
from environments import FOLDER
from server_figures import counted, read_totals

from nextn.bench.local_server import LocalServer, ended_like_ctrl_c
from nextn.bench.machine import this_machine
from nextn.config import EMBEDDED, model_folder

HERE = Path(__file__).parent
CLIENT_SECONDS = 600.0


def main() -> int:
    args = arguments()
    load = Load(args.num_prompts, args.max_concurrency, args.output_len)
    versions = {client.name: client.version(args.envs) for client in CLIENTS}
    clients = [client for client in CLIENTS if versions[client.name] is not None]
    missing = [client.name for client in CLIENTS if versions[client.name] is None]
    for name in missing:
        print(f"{name} is not installed: python {HERE / 'environments.py'} {name}", file=sys.stderr)
    if len(clients) == 1:
        return 2
    rounds = measure(clients, load, args)
    rows = compare(rounds)
    print(table(rows, [client.name for client in clients]))
    result: dict[str, Any] = {
        "machine": dataclasses.asdict(this_machine()),
        "model": EMBEDDED,
        "num_drafts": args.speculative_num_steps,
        "threads": args.threads,
        "load": dataclasses.asdict(load),
        "versions": {client.name: versions[client.name] for client in clients},
        "missing": missing,
        "figures": {
            row.figure: {
                "said": row.medians, "over_counted": row.ratios, "noise": row.noise, "verdict": row.verdict,
            }
            for row in rows
        },
        "rounds": {name: [dataclasses.asdict(run) for run in runs] for name, runs in rounds.items()},
    }  # fmt: skip
    line = json.dumps(rounded(result))
    if args.output is not None:
        args.output.write_text(line + "\n")
    print(line)
    return 1 if any(row.verdict == "differs" for row in rows) else 0


def arguments() -> argparse.Namespace:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument(
        "--envs",
        type=lambda text: Path(text).absolute(),
        default=FOLDER.absolute(),
        help="folder of environments.py",
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--num-prompts", type=int, default=32)
    parser.add_argument("--max-concurrency", type=int, default=4)
    parser.add_argument("--output-len", type=int, default=64)
    parser.add_argument("--speculative-num-steps", type=int, default=2, help="0: no MTP")
    parser.add_argument("--threads", type=int, default=1, help="of the server")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    return parser.parse_args()


def measure(clients: Sequence[Client], load: Load, args: argparse.Namespace) -> dict[str, list[Run]]:
    """Each client's runs, after one warm-up run of our client."""
    found: dict[str, list[Run]] = {client.name: [] for client in clients}
    options = ["--disable-radix-cache", "--threads", str(args.threads)]
    options += ["--speculative-num-steps", str(args.speculative_num_steps)]
    with tempfile.TemporaryDirectory(prefix="nextn-interop-") as name, ended_like_ctrl_c():
        folder = Path(name)
        load.write(folder / "prompts.jsonl")
        with LocalServer("of the comparison", options, folder / "server.log") as server:
            server.wait_ready()
            target = Target(
                server.url, server.model, model_folder(EMBEDDED), folder / "prompts.jsonl", folder
            )
            run(clients[0], load, target, args.envs)
            for number in range(args.rounds):
                turn = number % len(clients)
                for client in [*clients[turn:], *clients[:turn]]:
                    done = run(client, load, target, args.envs)
                    found[client.name].append(done)
                    print(f"round {number + 1}, {client.name}: {rounded(done.said)}", file=sys.stderr)
    return found


def run(client: Client, load: Load, target: Target, envs: Path) -> Run:
    """Runs a client once. Raises SystemExit, with the end of the client's output, if it fails."""
    target.result.unlink(missing_ok=True)
    before = read_totals(target.url)
    done = subprocess.run(
        [client.interpreter(envs), *client.words(load, target)],
        text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=CLIENT_SECONDS,
        cwd=target.folder, env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    if done.returncode != 0 or not target.result.is_file():
        lines = done.stdout.splitlines()[-25:]
        raise SystemExit("\n".join([f"{client.name} failed (exit code {done.returncode}):", *lines]))
    return Run(client.read(target.result), counted(before, read_totals(target.url), load.concurrency))


def rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, dict):
        return {k: rounded(v) for k, v in value.items()}
    return [rounded(v) for v in value] if isinstance(value, list) else value


if __name__ == "__main__":
    sys.exit(main())
