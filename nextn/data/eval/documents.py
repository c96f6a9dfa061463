"""Functions for the tasks in this folder: their documents, and the score of a generated line. lm-eval loads
this file.

nextn eval                                                       # runs both
lm_eval --include_path nextn/data/eval --tasks nextn_next_line … # with any model that lm-eval knows
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


def next_line(**_: Any) -> dict[str, Any]:
    return splits("next_line.jsonl")


def rest_of_line(**_: Any) -> dict[str, Any]:
    return splits("rest_of_line.jsonl")


def splits(file: str) -> dict[str, Any]:
    """split -> its documents, as a `datasets.Dataset`."""
    from datasets import Dataset

    docs = [json.loads(line) for line in (FOLDER / file).read_text(encoding="utf-8").splitlines()]
    return {
        split: Dataset.from_list([doc for doc in docs if doc["split"] == split])
        for split in ("test", "fewshot")
    }


def compare_lines(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    """Scores a generated line. exact_match: 1 if it equals the target; spaces at its end do not count.
    prefix_match: the share of the target's characters before the first wrong one."""
    got, real = results[0].partition("\n")[0].rstrip(), doc["target"]
    right = 0
    while right < min(len(got), len(real)) and got[right] == real[right]:
        right += 1
    return {"exact_match": float(got == real), "prefix_match": right / len(real)}
