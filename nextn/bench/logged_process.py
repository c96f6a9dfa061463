"""A server as a child process whose output goes to a file: started, watched and ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

STOP_SECONDS = 10.0
LAST_LINES = 15


class LoggedProcess(subprocess.Popen[bytes]):
    """A process that starts at once. Its output, stderr included, goes to `log`.

    `own_group`: the process gets a process group of its own, which is ended as a whole, and which Ctrl-C in
    the terminal does not reach. Otherwise it stays in this process's group.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
        own_group: bool = False,
    ) -> None:
        self.log, self.own_group = log, own_group
        with log.open("wb") as out:
            super().__init__(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=own_group,
            )

    def last_lines(self) -> list[str]:
        return self.log.read_text(errors="replace").splitlines()[-LAST_LINES:]

    def stop(self) -> None:
        """Asks the process to end; after `STOP_SECONDS` kills it. Nothing of its own group is left."""
        self.terminate()
        try:
            self.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        finally:
            if self.own_group:  # which may outlive its leader
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, signal.SIGKILL)
            self.kill()
            self.wait()
