"""Puts a server under loads and faults that it must survive, and measures it.

There are scenarios with many streams at once, with clients that disconnect or read slowly, with a bad
network, with malformed bodies, with a killed engine, and with a pool that is too small. A last one runs
nearly all of these together for a long time.

python benchmarks/load_and_faults.py                                    # 17 minutes on the embedded model
python benchmarks/load_and_faults.py --seconds 2 --soak 2 --clients 16  # the short form, as in the tests
python benchmarks/load_and_faults.py --scenario streams --output-dir benchmarks/results

The server checks its bookkeeping after every step (--check-integrity). An error in it would end the engine,
and the log is checked. The exit code is 1 if a requirement fails; the script then prints which.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "faults"))

from last_line import tell
from scenarios import SCENARIOS, SMALL_POOL, play
from server import Server

from nextn.bench.machine import this_machine
from nextn.config import EMBEDDED

SMALL = ["--kv-cache-tokens", "1024", "--max-running-requests", "16"]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model-path", default=EMBEDDED)
    parser.add_argument("--scenario", nargs="+", choices=SCENARIOS, default=list(SCENARIOS))
    parser.add_argument("--seconds", type=float, default=60.0, help="duration of each scenario (default: 60)")
    parser.add_argument("--soak", type=float, default=600.0, help="seconds of the soak (default: 600)")
    parser.add_argument("--clients", type=int, default=256, help="concurrent clients (default: 256)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output-dir", type=Path, help="folder for the result")
    args = parser.parse_args()
    common = ["--model-path", args.model_path, "--max-queued-requests", "2000"]
    results: dict[str, object] = {}
    for small in (False, True):
        names = [name for name in args.scenario if (name in SMALL_POOL) == small]
        if not names:
            continue
        with Server([*common, *SMALL] if small else common) as server:
            for name in names:
                seconds = args.soak if name == "soak" else args.seconds
                try:
                    found = asyncio.run(play(name, server, seconds, args.clients, args.seed))
                except AssertionError as wrong:
                    print(f"{name}: FAILED: {wrong}\n{server.log.read_text()[-4000:]}", file=sys.stderr)
                    return 1
                print(f"{name}: {found}", file=sys.stderr, flush=True)
                results[name] = found
    result = {"model": args.model_path, "machine": dataclasses.asdict(this_machine()), "scenarios": results}
    only = args.scenario if len(args.scenario) == 1 else []
    tell("-".join(["load-and-faults", *only]), result, args.output_dir)
    return 0


if __name__ == "__main__":
    sys.exit(main())
