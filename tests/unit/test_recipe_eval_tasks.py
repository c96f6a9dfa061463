"""The script that makes the tasks of `nextn eval`: which lines it takes, and what it makes of them."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nextn.config import EMBEDDED, model_folder

RECIPE = Path(__file__).parents[2] / "recipes" / "tiny"
BODY = "".join(f"    value_{i} = compute(argument_{i}, {i})\n" for i in range(12))
SOURCE = f'''import os


def first(argument):
    """A docstring that is long enough to be taken for code."""
{BODY}    if value_1 > value_2:
        return combine(value_1, value_2)  # a comment
    return combine(
        value_3, value_4,
    )


MODULE_LEVEL = compute(1, 2)
'''


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(RECIPE))
    import eval_tasks

    yield eval_tasks
    for name in [n for n, m in sys.modules.items() if str(RECIPE) in str(getattr(m, "__file__", ""))]:
        del sys.modules[name]


@pytest.fixture
def places(recipe: Any) -> list[Any]:
    from data import Source
    from tokenizers import Tokenizer

    tok = Tokenizer.from_file(str(model_folder(EMBEDDED) / "tokenizer.json"))
    return list(recipe.places(Source("stdlib/x.py", SOURCE), tok))


def test_whole_statements_of_functions_are_taken(places: list[Any]) -> None:
    assert {place.text.strip() for place in places} <= {line.strip() for line in BODY.splitlines()}
    assert len(places) >= 8
    for place in places:
        assert (place.context + place.text + "\n") in SOURCE
        assert place.context.startswith("def first(argument):\n")
        assert SOURCE.splitlines()[place.line - 1] == place.text


def test_next_line(recipe: Any, places: list[Any]) -> None:
    from data import Source

    place = places[0]
    doc = recipe.next_line(place, Source("stdlib/x.py", SOURCE), random.Random(1))
    assert doc["choices"][doc["answer"]] == place.text
    assert len(set(doc["choices"])) == 4
    assert all(choice.startswith("    ") and choice + "\n" in SOURCE for choice in doc["choices"])
    few = Source("stdlib/y.py", "def f():\n    return compute(1)\n")
    assert recipe.next_line(place, few, random.Random(1)) is None


def test_rest_of_line(recipe: Any, places: list[Any]) -> None:
    from data import Source

    source = Source("stdlib/x.py", SOURCE)
    for seed, place in enumerate(places):
        doc = recipe.rest_of_line(place, source, random.Random(seed))
        assert doc["context"] + doc["target"] == place.context + place.text
        assert len(doc["target"]) >= recipe.LEAST_REST
        assert doc["context"][-1].isalnum() or doc["context"][-1] == "_"
