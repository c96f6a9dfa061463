"""The benchmark's side of a runner: starts its process, sends requests, freezes it between turns, ends it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from protocol import Options, Reply

ANSWER_SECONDS = 1800.0  # an engine that compiles takes minutes to start
END_SECONDS = 20.0  # from SIGTERM to SIGKILL


class RunnerFailed(RuntimeError):
    """The engine ended or reported an error. The message has the last lines of its output."""


class RunnerProcess:
    """A runner's process. It has its own process group, so that an engine's workers are frozen and ended with
    it."""

    def __init__(
        self, python: Path, script: Path, options: Options, env: Mapping[str, str],
        most_seconds: float = ANSWER_SECONDS,
    ) -> None:  # fmt: skip
        """Starts the runner and waits until the model is loaded. Raises RunnerFailed, also after most_seconds
        without an answer."""
        self._most_seconds = most_seconds
        self._log = tempfile.TemporaryFile("w+b")  # noqa: SIM115  open as long as the process is
        self._process = subprocess.Popen(
            [str(python), str(script), *options.arguments()],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
            env={**os.environ, **env}, start_new_session=True,
        )  # fmt: skip
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        try:
            hello = self._read()
        except BaseException:  # Ctrl-C too, while the engine starts
            self.end()
            raise
        self.engine: str = hello["engine"]
        self.settings: dict[str, Any] = hello["settings"]

    def generate(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> Reply:
        """Completes the prompts. Raises RunnerFailed, also if the reply does not have max_tokens tokens for
        each prompt."""
        try:
            print(json.dumps({"prompts": prompts, "max_tokens": max_tokens}), file=self._stdin, flush=True)
        except BrokenPipeError:
            raise self._failed("it ended") from None
        answer = self._read()
        if "error" in answer:
            raise self._failed(answer["error"])
        reply = Reply.from_json(answer)
        if [len(tokens) for tokens in reply.tokens] != [max_tokens] * len(prompts):
            raise self._failed(
                f"{len(prompts)} prompts of {max_tokens} new tokens gave {list(map(len, reply.tokens))}"
            )
        return reply

    def freeze(self) -> None:
        """Stops the process group: an engine that polls would take time from the engine whose turn it is."""
        os.killpg(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.killpg(self._process.pid, signal.SIGCONT)

    def end(self) -> None:
        """Ends the whole group. A second call does nothing."""
        if self._log.closed:
            return
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            self.thaw()
            os.killpg(self._process.pid, signal.SIGTERM)
            self._process.wait(END_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()
        self._stdout.close()
        self._log.close()

    def _read(self) -> dict[str, Any]:
        # A request has exactly one line as its reply, so no line is in Python's buffer, unseen by select.
        if not select.select([self._stdout], [], [], self._most_seconds)[0]:
            raise self._failed(f"it did not answer in {self._most_seconds:.0f} s")
        line = self._stdout.readline()
        if not line:
            raise self._failed("it ended")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _failed(self, why: str) -> RunnerFailed:
        self._log.seek(0)
        said = self._log.read().decode(errors="replace").splitlines()[-15:]
        self.end()
        return RunnerFailed("\n".join([why, *said]))
