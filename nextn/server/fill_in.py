"""`suffix`: a prompt that has the model write what goes between two texts, in DeepSeek's form.

<｜fim▁begin｜>PROMPT<｜fim▁hole｜>SUFFIX<｜fim▁end｜>
"""

from __future__ import annotations

from collections.abc import Sequence

from nextn.server.errors import bad_request
from nextn.tokenizer.tokenizer import Tokenizer

BEGIN, HOLE, END = MARKS = ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>")


def with_suffix(prompts: Sequence[str | list[int]], suffix: str, tokenizer: Tokenizer) -> list[str]:
    """Raises ApiError where that cannot be."""
    for mark in MARKS:
        if tokenizer.token_id(mark) is None:
            raise bad_request(f"suffix is not supported by this model: it has no token {mark}", "suffix")
    texts = []
    for prompt in prompts:
        if not isinstance(prompt, str):
            raise bad_request("suffix goes with a prompt that is text, not token ids", "suffix")
        texts.append(BEGIN + prompt + HOLE + suffix + END)
    return texts
