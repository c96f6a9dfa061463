"""Tests every operation of /openapi.json with schemathesis, with data that its schema allows and other data.

benchmarks/fuzz/install.sh && python benchmarks/fuzz/api.py            # 3 minutes
python benchmarks/fuzz/api.py --max-examples 5 --phases fuzzing        # 20 seconds

Requirements: no answer is a 500 or takes a minute; an answer's contents, media type and status are those of
the schema; data that the schema does not allow is refused; other methods are refused too, and the answer
names the right ones. Afterwards, as in load_and_faults.py, no request runs, no page is held, every request is
counted, and the log has no complaint.

It is not required that data which the schema allows is accepted: the schema cannot say which fields go
together, which token ids a model has, or how long its context is.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "faults"))

from last_line import tell
from server import Server

SECONDS = "60"  # an answer that takes longer counts as a hang
COUNTED = re.compile(r'nextn:http_responses_total\{endpoint="(.*?)".*status_code="(\d+)"\}')


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model-path", default="fake:1,0.75")
    parser.add_argument("--schemathesis", help="the command (default: on PATH, or .fuzz/bin/schemathesis)")
    parser.add_argument("--max-examples", default="100", help="of an operation (default: 100)")
    parser.add_argument("--phases", default="coverage,fuzzing,stateful")
    parser.add_argument("--seed", default="0")
    parser.add_argument("--output-dir", type=Path, help="folder for the result")
    args = parser.parse_args()
    command = args.schemathesis or shutil.which("schemathesis") or shutil.which(".fuzz/bin/schemathesis")
    if command is None:
        parser.error("schemathesis is not here; benchmarks/fuzz/install.sh installs it")
    with (
        tempfile.TemporaryDirectory() as traces,
        Server(
            ["--model-path", args.model_path, "--max-queued-requests", "2000", "--profile-dir", traces]
        ) as server,
    ):
        before = server.megabytes()
        options = [
            "--max-examples", args.max_examples, "--phases", args.phases, "--seed", args.seed,
            "--exclude-checks", "positive_data_acceptance", "--request-timeout", SECONDS,
            "--continue-on-failure", "--suppress-health-check", "all", "--warnings", "off",
        ]  # fmt: skip
        hooked = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "SCHEMATHESIS_HOOKS": "hooks"}
        with tempfile.TemporaryDirectory() as folder:  # schemathesis leaves files in its working folder
            done = subprocess.run(
                [Path(command).absolute(), "run", f"{server.url}/openapi.json", *options],
                stdout=sys.stderr,
                env=hooked,
                cwd=folder,
            )
        metrics = asyncio.run(server.settled())
        after = server.megabytes()
        complaints = server.complaints()
    statuses: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for name, value in metrics.items():
        if match := COUNTED.fullmatch(name):
            statuses[match[1]][match[2]] += int(value)
    result = {
        "model": args.model_path,
        "held": done.returncode == 0 and not complaints,
        "statuses": statuses,
        "megabytes": [round(before, 1), round(after, 1)],
        "complaints": complaints,
    }
    tell("fuzz-api", result, args.output_dir)
    return 0 if result["held"] else 1


if __name__ == "__main__":
    sys.exit(main())
