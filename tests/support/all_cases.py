"""`make test` runs few cases of what has many combinations, chosen so that every value and most pairs of
values occur; `make test-all` runs all of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

Case = TypeVar("Case")

ALL_CASES = bool(os.environ.get("NEXTN_ALL_CASES"))


def few_or_all(few: Sequence[Case], others: Sequence[Case]) -> list[Case]:
    """few, and `others` after them if all cases run."""
    return [*few, *(others if ALL_CASES else ())]
