"""Runs programs that a model wrote, each in its own process: with limits of time and memory, in an empty
folder, without this process's environment. This limits accidents but is not a sandbox. A malicious program
can read files and use the network, so run it in a container.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import sys
import tempfile

SECONDS = 10.0
MEMORY = 2**30  # bytes
OUTPUT = 2**20  # bytes that a program may write to one file
# Sets the limits, then runs the program from stdin.
LAUNCHER = f"""
import resource, sys
program = sys.stdin.read()
for limit, most in (("AS", {MEMORY}), ("CPU", {int(SECONDS) + 1}), ("FSIZE", {OUTPUT}), ("CORE", 0)):
    resource.setrlimit(getattr(resource, "RLIMIT_" + limit), (most, most))
exec(compile(program, "program", "exec"), {{"__name__": "program"}})
"""


@functools.lru_cache(maxsize=4096)
def passes(program: str, seconds: float = SECONDS) -> bool:
    """Whether the program ends without an error within its limits. The same program runs only once. So
    servers with the same texts have the same scores, even if the machine is busy at times."""
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
        finally:  # also ends processes that the program started
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return process.returncode == 0
