"""Attacks a server with requests of one client, and checks that an honest client is not disturbed.

The requests are grammars, regular expressions, prompts and parameters that any client can send. The attacker
is a separate process at the lowest priority.

python benchmarks/attacks.py                                   # all, a few minutes
python benchmarks/attacks.py --attack lark-chain gbnf-leaves
python benchmarks/attacks.py --short                           # as in the tests: nothing depends on speed

faults/attacks.py says what must hold; the requests are in faults/attack_cases.py. The exit code is 1 if
something did not hold. The last line is JSON. On a machine with other work, limit the memory of a server that
fails: `ulimit -v 12000000`.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "faults"))

from attacks import NAMES, Rules, play_all
from last_line import tell

from nextn.bench.machine import this_machine
from nextn.config import EMBEDDED

# limit: only a hang reaches it; jobs of 3 s each, one after the other on a busy machine, do not. most: twice
# as many requests as are compiled at once. nice: a lower priority would only make the test longer.
SHORT = Rules(limit=600.0, timed=False, megabytes=200.0, patience=5.0, warm=2, repeat=0.0, most=4, nice=0)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model-path", default=EMBEDDED)
    parser.add_argument("--attack", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--short", action="store_true", help="shorter waits; times are not judged")
    parser.add_argument("--limit", type=float, help="seconds after which a request counts as hanging")
    parser.add_argument("--threads", type=int, help="CPU threads of the engine")
    parser.add_argument("--output-dir", type=Path, help="folder for the result")
    args = parser.parse_args()
    rules = SHORT if args.short else Rules()
    if args.limit is not None:
        rules = dataclasses.replace(rules, limit=args.limit)
    options = ["--model-path", args.model_path, "--shutdown-timeout", "1"]
    if args.short:  # ends slow compilations sooner; an ordinary constraint takes a hundredth of this
        options += ["--grammar-compile-timeout", "3"]
    if args.threads is not None:
        options += ["--threads", str(args.threads)]
    results = {}
    for name, result in play_all(args.attack, options, rules):
        results[name] = result
        print(f"{name}: {result}", file=sys.stderr, flush=True)
    held = all(result["held"] for result in results.values())
    machine = dataclasses.asdict(this_machine())
    tell(
        "attacks",
        {"model": args.model_path, "machine": machine, "held": held, "attacks": results},
        args.output_dir,
    )
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
