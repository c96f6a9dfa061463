"""return_token_ids, as vLLM words it: an answer's tokens and its prompt's, beside the text.

In a stream each chunk has the tokens that came since the last, its text's or not yet; a choice's first chunk
has the prompt's. Of completions it is the choice that has the prompt's, of chats the answer.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, UnsetType

from nextn.server.answers.generation import Choice
from nextn.server.protocol.responses import ChatChoice, ChatDelta, CompletionChoice

Worded = CompletionChoice | ChatChoice | ChatDelta


class TokenIds:
    """Of one answer."""

    def __init__(self) -> None:
        self._told: dict[int, int] = {}  # by choice: how many tokens

    def tell(self, choice: Choice, worded: Sequence[Worded]) -> list[int] | UnsetType:
        """Adds them to the choice as it is worded: whole, or in one or more chunks. Returns what the first of
        them must say of the prompt beside the choice."""
        tokens = choice.tokens + ([choice.matched] if isinstance(choice.matched, int) else [])
        first, last = worded[0], worded[-1]
        last.token_ids = tokens[self._told.get(choice.index, 0) :]
        begins = choice.index not in self._told
        self._told[choice.index] = len(tokens)
        if not begins:
            return UNSET
        if isinstance(first, CompletionChoice):
            first.prompt_token_ids = choice.request.tokens
            return UNSET
        return choice.request.tokens
