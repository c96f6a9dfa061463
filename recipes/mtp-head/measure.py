"""Measures a draft folder: accept length and texts on chats that are not in the training data."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from texts import frame

from nextn import LLM, SamplingParams
from nextn.bench.prompts import questions as heldout_questions
from nextn.stats import SpecStats

NEW = 128
SETTINGS = ((0.0, 1), (0.0, 2), (0.0, 3), (0.7, 2))  # temperature, drafts


def measure(model_path: str, folder: Path, questions: int = 32) -> dict[str, Any]:
    """Accept lengths by temperature and number of drafts. Asserts that greedy texts are the same as without
    drafts."""
    lines = heldout_questions()[:questions]
    wanted: list[list[int]] = []
    found: dict[str, Any] = {"model": model_path, "questions": len(lines), "tokens": NEW}
    for temperature, drafts in ((0.0, 0), *SETTINGS):
        options: dict[str, Any] = {"speculative_num_steps": drafts}
        if drafts:
            options["speculative_draft_model_path"] = str(folder)
        llm = LLM(model_path, **options)
        params = SamplingParams(max_tokens=NEW, temperature=temperature, seed=0)
        if frame(llm)[1] is None:
            done = llm.generate(lines, params)
        else:
            done = llm.chat([[{"role": "user", "content": line}] for line in lines], params)
        if not drafts:
            wanted = [each.token_ids for each in done]
            continue
        if temperature == 0:
            assert [each.token_ids for each in done] == wanted, "a draft changed a text"
        total = SpecStats()
        for each in done:
            total.merge(each.spec)
        found[f"T={temperature:g}, {drafts} drafts"] = {
            "accept_length": round(total.committed / max(1, total.verify_steps), 3),
            "by_position": [
                round(a / p, 3) for a, p in zip(total.accepted, total.proposed, strict=True) if p
            ],
        }
    return found


if __name__ == "__main__":
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--model-path", required=True)
    ap.add_argument("folder", type=Path)
    args = ap.parse_args()
    print(json.dumps(measure(args.model_path, args.folder)))
