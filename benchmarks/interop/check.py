"""Checks whether nextn works with common tools, unmodified, on the embedded model.

    python benchmarks/interop/environments.py --all       # once: each tool from PyPI, some GB
    python benchmarks/interop/check.py                    # about 10 minutes
    python benchmarks/interop/check.py smg litellm        # only these
    python benchmarks/interop/check.py --record           # also write docs/interoperability.md

A tool's results are compared with plain calls and with the server's counters. --record replaces the tools'
findings in matrix.json and rewrites the page's tables. The exit code is 1 if a use fails that does not fail
in matrix.json, and 2 if nothing was tried. The last line is JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import matrix
from bench import Bench, bench_for, log
from checks import apart, gateways, litellm_proxy, lm_eval_runs, load_clients, openai_sdk
from environments import ENVIRONMENTS, FOLDER
from findings import Finding
from matrix import Tool

from nextn.bench.local_server import ended_like_ctrl_c

CHECKS: dict[str, Callable[[Bench], Sequence[Finding]]] = {
    "openai": openai_sdk.check_openai,
    "litellm": litellm_proxy.check_litellm,
    "lm-eval": lm_eval_runs.check_lm_eval,
    "vllm": load_clients.check_vllm,
    "sglang": load_clients.check_sglang,
    "guidellm": load_clients.check_guidellm,
    "sglang-router": gateways.check_router,
    "smg": gateways.check_smg,
    "vllm-router": apart.check_vllm_router,
}


def main() -> int:
    args = arguments()
    known = matrix.load()
    found = []
    for name in args.tools or CHECKS:
        tool = check(name, args.envs, args.logs)
        found.append(tool)
        for finding in tool.findings:
            print(f"{tool.name:<14}{finding.outcome:<9}{finding.use}: {finding.detail}", flush=True)
        if args.record:
            matrix.record([tool])
    print(json.dumps([dataclasses.asdict(tool) for tool in found]))
    if not any(tool.findings for tool in found):
        return 2
    return 1 if any(matrix.news(tool, known) for tool in found) else 0


def arguments() -> argparse.Namespace:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("tools", nargs="*", metavar="TOOL", help=f"{', '.join(CHECKS)}; none: all")
    parser.add_argument(
        "--envs", type=lambda text: Path(text).absolute(), default=FOLDER.absolute(),
        help="folder of environments.py",
    )  # fmt: skip
    parser.add_argument("--record", action="store_true", help="into matrix.json and docs/interoperability.md")
    parser.add_argument("--logs", type=Path, help="folder that keeps every log; without it there is none")
    args = parser.parse_args()
    for name in args.tools:
        if name not in CHECKS:
            parser.error(f"{name} is not a tool: {', '.join(CHECKS)}")
    return args


def check(name: str, envs: Path, logs: Path | None) -> Tool:
    """Runs the checks of a tool. Returns its version and findings; neither if it is not installed."""
    version = ENVIRONMENTS[name].version(envs)
    if version is None:
        missing = f"not installed: python benchmarks/interop/environments.py {name}"
        log(f"{name} is {missing}")
        return Tool(name, None, [], missing)
    log(f"{name} {version} ...")
    with (
        tempfile.TemporaryDirectory(prefix="nextn-interop-") as temporary,
        ended_like_ctrl_c(),
        bench_for(name, envs, (logs or Path(temporary)).absolute() / name) as bench,
    ):
        try:
            return Tool(name, version, list(CHECKS[name](bench)))
        except Exception as e:  # the setup failed, before any use was tried
            traceback.print_exc()
            return Tool(name, version, [Finding("start", "fails", f"{type(e).__name__}: {e}", 0.0)])


if __name__ == "__main__":
    sys.exit(main())
