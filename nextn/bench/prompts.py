"""The held-out prompts in the package: real Python source that the embedded model was never trained on."""

from __future__ import annotations

import json
from pathlib import Path

# What the model in the package completes well, greedily; the server's page has it too, and so have the docs.
EXAMPLE = 'def read_lines(path):\n    """Return the lines of a file."""\n'
HELDOUT = Path(__file__).parent.parent / "data" / "heldout.jsonl"


def heldout_prompts(count: int) -> list[str]:
    """The first `count` prompts. Raises ValueError when there are fewer."""
    prompts = all_heldout_prompts()
    if count > len(prompts):
        raise ValueError(f"{count} prompts asked for; there are {len(prompts)} held-out prompts")
    return prompts[:count]


def all_heldout_prompts() -> list[str]:
    return [json.loads(line)["prompt"] for line in HELDOUT.read_text(encoding="utf-8").splitlines()]
