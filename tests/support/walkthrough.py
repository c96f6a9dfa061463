"""Runs the commands of a page of the docs, as a reader does in two terminals.

`<!-- run -->` before a code block marks it; it is invisible on the page. In a `console` block, lines after `$
` are commands, and lines after `> ` are typed into the command before. `nextn serve` runs, as in its own
terminal, until the next one with other options, which may be on another page. A `python` block continues the
ones before it. `<!-- serve: OPTIONS -->` starts a server that the page assumes.

Two things differ from the page: the port, so that tests can run in parallel, and `nextn`, which belongs to
the Python that runs the tests.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from support import markdown
from support.server_process import ServerProcess

from nextn.server_config import ServerConfig
from nextn.utils import free_port

MARK = re.compile(r"<!-- (?:(run)|serve:([^>]*)) -->\n+")
DEFAULT_PORT = str(ServerConfig().port)
END = "\0"
# For commands that talk to a server: the page omits the default address.
SHELL = """
nextn() { case $1 in
  chat|top) command "$PYTHON" -m nextn "$@" --base-url http://127.0.0.1:$PORT ;;
  *) command "$PYTHON" -m nextn "$@" ;;
esac; }
while read -r -d '' line; do eval "$line"; printf '\\0%s\\0' $?; done
"""
PYTHON = """
import json, sys, traceback
names = {}
for line in sys.stdin:
    code = 0
    try:
        exec(compile(json.loads(line), "block", "exec"), names)
    except BaseException:
        traceback.print_exc(file=sys.stdout)
        code = 1
    print(end=f"\\0{code}\\0", flush=True)
"""


@dataclass(frozen=True)
class Entry:
    """One input of the reader, and what the page shows after it."""

    kind: str  # serve, console or python
    text: str
    typed: str = ""
    shown: str = ""


@dataclass(frozen=True)
class Ran:
    code: int
    output: str


def entries(page: str) -> Iterator[Entry]:
    """The entries of the marked blocks. Raises ValueError for a mark without a block that can run.

    >>> list(entries("<!-- run -->\\n```console\\n$ a \\\\\\n  b\\nc\\n> d\\n```\\n"))
    [Entry(kind='console', text='a \\\\\\n  b', typed='d\\n', shown='c\\n')]
    """
    for mark in MARK.finditer(page):
        if mark[1] is None:
            yield Entry("serve", f"nextn serve {mark[2].strip()}")
            continue
        block = markdown.FENCE.match(page, mark.end())
        if block is None or block[2] not in ("console", "python"):
            raise ValueError(
                f"no block of console or python follows {page[mark.start() : mark.end() + 60]!r}"
            )
        yield from console(block[3]) if block[2] == "console" else [Entry("python", block[3])]


def console(block: str) -> Iterator[Entry]:
    for command, rest in re.findall(r"^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)", block, re.M):
        lines = rest.splitlines(keepends=True)
        typed = "".join(line[2:] for line in lines if line.startswith("> "))
        shown = "".join(line for line in lines if not line.startswith("> "))
        yield Entry("serve" if command.startswith("nextn serve") else "console", command, typed, shown)


class Terminal:
    """A shell or a Python that reads entries one after another."""

    def __init__(self, command: list[str], folder: Path, environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            command, cwd=folder, env={**os.environ, **environment}, text=True, encoding="utf-8",
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def enter(self, text: str) -> Ran:
        """Runs the text. Returns all its output, errors included, and its exit code."""
        assert self.process.stdin is not None
        self.process.stdin.write(text)
        self.process.stdin.flush()
        output, code = self._until_end(), self._until_end()
        return Ran(int(code), output)

    def _until_end(self) -> str:
        assert self.process.stdout is not None
        read = ""
        while not read.endswith(END):
            character = self.process.stdout.read(1)
            assert character, f"the terminal ended: {read}"
            read += character
        return read[:-1]

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.process.kill()
        self.process.communicate()


class OneServer:
    """The server of the pages, one at a time. A command that is entered again finds it running."""

    def __init__(self) -> None:
        self.port = str(free_port("127.0.0.1"))
        self.words: list[str] = []
        self.server: ServerProcess | None = None

    def start(self, words: list[str]) -> ServerProcess:
        """Returns when it is ready."""
        if self.server is None or words != self.words:
            self.end()
            port = [] if "--port" in words else ["--port", self.port]
            self.server, self.words = ServerProcess(["-m", "nextn", *words, *port]).wait_ready(), words
        return self.server

    def end(self) -> None:
        if self.server is not None:
            self.server.kill()
            self.server = None


class Walkthrough:
    """The terminals of one page."""

    def __init__(self, folder: Path, server: OneServer) -> None:
        self.server, self.port = server, server.port
        self.stack = ExitStack()
        environment = {"PORT": self.port, "PYTHON": sys.executable}
        self.folder, self.environment = folder, environment
        self.terminals: dict[str, Terminal] = {}

    def enter(self, entry: Entry) -> Ran:
        text = entry.text.replace(DEFAULT_PORT, self.port)
        if entry.kind == "serve":
            return self.serve(text)
        if entry.typed:
            text += f" <<'TYPED'\n{entry.typed}TYPED\n"
        terminal = self.terminal(entry.kind)
        return terminal.enter(f"{text}\0" if entry.kind == "console" else json.dumps(text) + "\n")

    def serve(self, command: str) -> Ran:
        """Starts a server. Returns its output when it is ready."""
        server = self.server.start(command.replace("\\\n", " ").split()[1:])
        return Ran(0, "\n".join(server.stdout) + "\n")

    def terminal(self, kind: str) -> Terminal:
        if kind not in self.terminals:
            command = [sys.executable, "-c", PYTHON] if kind == "python" else ["bash", "-c", SHELL]
            terminal = Terminal(command, self.folder, self.environment)
            self.terminals[kind] = self.stack.enter_context(terminal)
        return self.terminals[kind]

    def __enter__(self) -> Walkthrough:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stack.close()
