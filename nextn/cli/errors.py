"""The error that ends a command when the user can fix it."""

from __future__ import annotations


class CommandError(Exception):
    """The user can fix it. Its message is printed as one line on stderr, and the command ends with
    `exit_code`."""

    def __init__(self, message: str, exit_code: int = 2) -> None:
        super().__init__(" ".join(message.split()))
        self.exit_code = exit_code
