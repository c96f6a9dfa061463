"""Selects the cases of tests with many combinations. `make test` runs few cases, in which every value and
most pairs of values occur. `make test-all` runs all of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

Case = TypeVar("Case")

ALL_CASES = bool(os.environ.get("NEXTN_ALL_CASES"))


def few_or_all(few: Sequence[Case], others: Sequence[Case]) -> list[Case]:
    """`few`, followed by `others` if all cases run."""
    return [*few, *(others if ALL_CASES else ())]
