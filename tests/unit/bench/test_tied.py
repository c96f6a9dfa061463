"""A command that ends with whoever started it."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from support.processes import runs
from support.server_process import until

from nextn.bench import tied

STARTER = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, sys.argv[1], str(os.getpid()), sys.executable, "-c", sys.argv[2]])
print(child.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal is Linux'")
def test_it_ends_when_its_starter_is_killed() -> None:
    program = "import time; print('here', flush=True); time.sleep(60)"
    command = [sys.executable, "-c", STARTER, tied.__file__, program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        said = {starter.stdout.readline(), starter.stdout.readline()}
        pid = int(*(said - {"here\n"}))
        assert runs(pid)
        starter.send_signal(signal.SIGKILL)
        until(lambda: not runs(pid))


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal is Linux'")
def test_it_does_not_begin_when_its_starter_is_gone() -> None:
    done = subprocess.run([sys.executable, tied.__file__, "1", "echo", "here"], capture_output=True)
    assert (done.returncode, done.stdout) == (1, b"")
