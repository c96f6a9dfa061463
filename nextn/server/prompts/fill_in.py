"""`suffix`: makes prompts for which the model writes the text between two texts, in DeepSeek's form.

<｜fim▁begin｜>PROMPT<｜fim▁hole｜>SUFFIX<｜fim▁end｜>
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nextn.server.protocol.errors import bad_request
from nextn.tokenizer.tokenizer import Tokenizer

BEGIN, HOLE, END = MARKS = ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>")


def with_suffix(prompts: Sequence[str | list[int]], suffix: str, tokenizer: Tokenizer) -> Iterator[str]:
    """Yields the prompts one by one, because all of them together may be large. Raises ApiError (400) if the
    model has no tokens for this, or a prompt is token ids."""
    for mark in MARKS:
        if tokenizer.token_id(mark) is None:
            raise bad_request(f"suffix is not supported by this model: it has no token {mark}", "suffix")
    for prompt in prompts:
        if not isinstance(prompt, str):
            raise bad_request("suffix needs a prompt that is text, not token ids", "suffix")
        yield BEGIN + prompt + HOLE + suffix + END
