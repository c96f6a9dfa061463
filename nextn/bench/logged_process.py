"""A child process whose output goes to a file."""

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
    """A process; the constructor starts it. Its output, stderr included, goes to `log`.

    `own_group`: the process gets its own process group. `stop` ends the whole group, and Ctrl-C in the
    terminal does not reach it. Otherwise the process stays in this process's group.
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
        """Asks the process to end, and kills it after `STOP_SECONDS`. With `own_group`, kills the rest of
        its group too."""
        self.terminate()
        try:
            self.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        finally:
            if self.own_group:  # other processes of the group can outlive this one
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, signal.SIGKILL)
            self.kill()
            self.wait()
