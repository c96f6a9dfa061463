"""What ranks and processes of an executor are told between steps, and answer nothing to."""

from __future__ import annotations

from typing import TypeAlias

from nextn.engine.page_data import PageData
from nextn.engine.runner import Runner
from nextn.speculative.state import RequestState

Told: TypeAlias = RequestState | str | PageData  # see `States`: a string is dropped; and `write_pages`


def take(runner: Runner, message: object) -> bool:
    """False: it is something else."""
    if isinstance(message, RequestState):
        runner.add(message)
    elif isinstance(message, str):
        runner.drop(message)
    elif isinstance(message, PageData):
        runner.write_pages(message.pages, message.tensor())
    else:
        return False
    return True
