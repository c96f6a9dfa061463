"""The held-out prompts in the package: real Python source that the embedded model was never trained on."""

from __future__ import annotations

import json
from pathlib import Path

HELDOUT = Path(__file__).parent.parent / "data" / "heldout.jsonl"


def heldout_prompts(count: int) -> list[str]:
    """The first `count` of them. Raises ValueError when there are fewer."""
    lines = HELDOUT.read_text(encoding="utf-8").splitlines()
    if count > len(lines):
        raise ValueError(f"{count} prompts asked for; there are {len(lines)} held-out prompts")
    return [json.loads(line)["prompt"] for line in lines[:count]]
