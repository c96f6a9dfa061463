"""schemathesis on /openapi.json: every operation, with data that its schema takes and data that it does not.

benchmarks/fuzz/install.sh && python benchmarks/fuzz/api.py            # 3 minutes
python benchmarks/fuzz/api.py --max-examples 5 --phases fuzzing        # 20 seconds

Held: no answer is a 500 or takes a minute; what is told is what the schema says, in a kind and with a status
that it names; what the schema does not take is refused; so are other methods, with the right ones named.
Then, as in load_and_faults.py: nothing runs, no page is held, every request is accounted for, the log has no
complaint.

Not held is that what the schema takes is accepted: it cannot say which fields go together, which token ids a
model has, or how long its context is.
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

SECONDS = "60"  # for one answer; longer is taken for a hang
COUNTED = re.compile(r'nextn:http_responses_total\{endpoint="(.*?)".*status_code="(\d+)"\}')


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model-path", default="fake:1,0.75")
    parser.add_argument("--schemathesis", help="the command (default: on PATH, or .fuzz/bin/schemathesis)")
    parser.add_argument("--max-examples", default="100", help="of an operation (default: 100)")
    parser.add_argument("--phases", default="coverage,fuzzing,stateful")
    parser.add_argument("--seed", default="0")
    parser.add_argument("--output-dir", type=Path, help="where the result is kept")
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
        with tempfile.TemporaryDirectory() as folder:  # it leaves files where it runs
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
