"""The held-out prompts in the package: real Python source that was not in the embedded model's training data,
and questions that were not in the training data of smollm2's drafter."""

from __future__ import annotations

import json
from pathlib import Path

from nextn.config import model_folder
from nextn.tokenizer.tokenizer import Tokenizer

# A prompt that the model in the package completes well greedily. The server's page and the docs use it too.
EXAMPLE = 'def read_lines(path):\n    """Return the lines of a file."""\n'
DATA = Path(__file__).parent.parent / "data"
HELDOUT, QUESTIONS = DATA / "heldout.jsonl", DATA / "questions.txt"


def heldout_prompts(count: int) -> list[str]:
    """The first `count` prompts. Raises ValueError if there are fewer."""
    return _first(count, all_heldout_prompts(), "held-out prompts")


def all_heldout_prompts() -> list[str]:
    return [json.loads(line)["prompt"] for line in HELDOUT.read_text(encoding="utf-8").splitlines()]


def questions() -> list[str]:
    return QUESTIONS.read_text(encoding="utf-8").splitlines()


def asked_questions(count: int, model_path: str) -> list[str]:
    """The first `count` questions in the model's chat template. Raises ValueError if the model has no chat
    template, or if there are fewer questions."""
    template = Tokenizer.from_folder(model_folder(model_path)).chat_template
    if template is None:
        raise ValueError(f"--prompts questions: {model_path} has no chat template; use --prompts code")
    asked = _first(count, questions(), "questions")
    return [template.render([{"role": "user", "content": question}]) for question in asked]


def _first(count: int, prompts: list[str], what: str) -> list[str]:
    if count > len(prompts):
        raise ValueError(f"{count} prompts were requested; there are only {len(prompts)} {what}")
    return prompts[:count]
