"""Refuses prompts that an engine cannot compute."""

from __future__ import annotations

from array import array

from nextn.request import Request


def check_prompt(request: Request, context_length: int, vocab_size: int) -> None:
    """Raises ValueError."""
    n = len(request.tokens)
    if n == 0:
        raise ValueError("the prompt is empty; it needs at least one token")
    if n + min(1, request.params.max_tokens) > context_length:
        raise ValueError(
            f"the prompt has {n} tokens, the context length is {context_length}; "
            f"it must leave room for at least one more, unless max_tokens is 0"
        )
    _check_ids(request.tokens, vocab_size)


def _check_ids(tokens: list[int], vocab_size: int) -> None:
    try:
        ids = array("q", tokens)
    except (TypeError, OverflowError) as e:
        raise ValueError(f"the prompt must be token ids in 0..{vocab_size - 1}: {e}") from e
    if min(ids) < 0 or max(ids) >= vocab_size:
        raise ValueError(f"the prompt has token ids outside 0..{vocab_size - 1}")
