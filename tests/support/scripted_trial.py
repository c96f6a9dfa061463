"""A worker's library for tests: a job says what its child process does."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nextn.grammar.worker import Try

MIB = 2**20


def make(options: Mapping[str, Any]) -> Try:
    """options: {"fail": true} if the library cannot be loaded."""
    assert not options.get("fail")
    return attempt


def attempt(job: Mapping[str, Any]) -> tuple[str, object]:
    do = job.get("do", "answer")
    if "pid" in job:  # a file for the child's process id
        Path(job["pid"]).write_text(str(os.getpid()))
    if do == "die":
        os.kill(os.getpid(), job["signal"])
    elif do == "hang":
        signal.pause()
    elif do == "refuse":
        raise ValueError("it is no good")
    elif do == "panic":
        raise BaseException("a panic")
    elif do == "wait":
        while not Path(job["for"]).exists():
            time.sleep(0.005)
    return "é" * job.get("long", 1), b"x" * (job.get("mib", 0) * MIB)
