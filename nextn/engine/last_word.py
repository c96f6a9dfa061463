"""A rank's connection to group 0's engine, which reports when all have loaded, and why all end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from multiprocessing.connection import Connection

from nextn.distributed.wire import GONE, Ended, receive
from nextn.engine.exit_codes import LET_GO, LOST, REFUSED


class LastWord:
    """on_loaded: called when all ranks have loaded the model. For several threads."""

    def __init__(self, link: Connection, on_loaded: Callable[[], None]) -> None:
        self.link = link
        self._on_loaded = on_loaded
        self._lock = threading.Lock()
        self._found: Ended | None = None
        self._over = False

    def take(self, seconds: float) -> bool:
        """Reads messages until none arrives for `seconds`. Returns whether the last message has arrived, or
        the engine has ended."""
        with self._lock:
            while not self._over:
                try:
                    if not self.link.poll(seconds):
                        return False
                    message = receive(self.link)
                except GONE:
                    self._over = True
                else:
                    if isinstance(message, Ended):
                        self._found, self._over = message, True
                    else:
                        self._on_loaded()
            return True

    @property
    def code(self) -> int:
        """The exit code of a rank that has received it."""
        if self._found is None:
            return LOST
        return REFUSED if self._found.error else LET_GO

    @property
    def error(self) -> str:
        """The error, or ""."""
        return "" if self._found is None else self._found.error
