"""Limits of prompts: the context length and the vocabulary. `Bound` checks them before tokenization."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nextn.server.protocol.errors import ApiError, bad_request, over_context, too_long
from nextn.tokenizer.length import Length
from nextn.tokenizer.tokenizer import PIECE


class Bound(NamedTuple):
    """The limits for prompts, sent to the process that parses large bodies. context, vocab_size: from the
    engine. length: from the tokenizer."""

    context: int
    vocab_size: int
    length: Length

    def check(self, prompts: Sequence[str | list[int]]) -> None:
        """Raises ApiError for prompts that are certain to be refused. Later checks raise the same error."""
        for prompt in prompts:
            if isinstance(prompt, str):
                # The length of a shorter prompt is checked after tokenization, in one piece.
                if len(prompt) > PIECE and self.length.exceeds([prompt], self.context):
                    raise too_long(len(prompt), self.context)
            elif len(prompt) > self.context:
                raise no_room(len(prompt), self.context)
            else:
                check_vocabulary(prompt, self.vocab_size)


def no_room(length: int, context: int, more: str = "") -> ApiError:
    return over_context(f"the prompt has {length} tokens, the context length is {context}{more}")


def check_vocabulary(tokens: list[int], vocab_size: int) -> None:
    if not tokens:
        raise bad_request("the prompt is empty", "prompt")
    if min(tokens) < 0 or max(tokens) >= vocab_size:
        wrong = next(token for token in tokens if not 0 <= token < vocab_size)
        raise bad_request(f"prompt: token id {wrong} is outside the vocabulary 0..{vocab_size - 1}", "prompt")


def token_limit(tokens: list[int], asked: int | None, default: int | None, context: int, name: str) -> int:
    """The maximum number of tokens to generate: `asked` (from the field `name`) if given, otherwise the
    default (None: no limit), cut to the room in the context. Raises ApiError (400) if there is no room, or
    less than `asked`."""
    length = len(tokens)
    room = context - length
    if room == asked == 0:
        return 0
    if room < 1:
        raise no_room(length, context, "; that leaves no room for an answer" if room == 0 else "")
    if asked is not None and asked > room:
        message = (
            f"the prompt has {length} tokens and {name} is {asked}, {length + asked} together; "
            f"the context length is {context}"
        )
        raise over_context(message, name)
    return min(default or room, room) if asked is None else asked
