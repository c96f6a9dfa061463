"""Messages from another process that change a runner's state between steps. They have no answer."""

from __future__ import annotations

from typing import TypeAlias

from nextn.engine.page_data import PageData
from nextn.engine.runner import Runner
from nextn.speculative.state import RequestState

# A request to add, the id of one to drop (see `States`), and pages to write.
StateMessage: TypeAlias = RequestState | str | PageData


def apply(runner: Runner, message: object) -> bool:
    """Applies the message. False if it is a message of another kind."""
    if isinstance(message, RequestState):
        runner.add(message)
    elif isinstance(message, str):
        runner.drop(message)
    elif isinstance(message, PageData):
        runner.write_pages(message.pages, message.tensor())
    else:
        return False
    return True
