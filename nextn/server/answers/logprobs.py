"""Log-probabilities of an answer: assigns them to pieces of text, and formats them for both OpenAI endpoints.

They are cut like the text: tokens that begin in a stop string are left out. A token's log-probability is sent
with the text in which the token begins. The chunks of a stream together therefore have the same entries as a
whole answer.
"""

from __future__ import annotations

import codecs
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from nextn.request import TokenLogprob
from nextn.server.protocol.responses import ChatLogprob, ChatLogprobs, CompletionLogprobs, TopLogprob, encode
from nextn.tokenizer.token_bytes import TokenBytes
from nextn.tokenizer.tokenizer import Tokenizer

UTF8 = codecs.getincrementaldecoder("utf-8")


class Entry(NamedTuple):
    """One token of an answer. offset: number of characters before the token. A token that begins inside a
    character has that character's offset."""

    token: int
    offset: int
    logprob: TokenLogprob | None  # None: the first token of a prompt


class PromptEntries:
    """A prompt's entries, for answers that begin with the prompt. They are made and encoded once for all
    answers."""

    def __init__(
        self, tokenizer: Tokenizer, text: str, tokens: list[int], logprobs: Sequence[TokenLogprob | None]
    ) -> None:
        """text: the prompt's text as it is sent."""
        self.length = len(text)
        made = list(prompt_entries(tokenizer, text, tokens, logprobs))
        first = bisect_left(made, self.length, key=lambda entry: entry.offset)
        self.entries, self.rest = made[:first], made[first:]  # the rest is sent with the answer's text
        own = completion_logprobs(self.entries, tokenizer)
        self._encoded = [encode(getattr(own, name))[1:-1] for name in own.__struct_fields__]
        self._alone = msgspec.Raw(encode(own))

    def before(self, others: CompletionLogprobs) -> msgspec.Raw:
        """The JSON of the prompt's log-probabilities followed by `others`."""
        if not others.tokens:
            return self._alone
        parts = []
        for name, first in zip(others.__struct_fields__, self._encoded, strict=True):
            both = (first, encode(getattr(others, name))[1:-1])
            parts.append(b'"%s":[%s]' % (name.encode(), b",".join(filter(None, both))))
        return msgspec.Raw(b"{%s}" % b",".join(parts))


def prompt_entries(
    tokenizer: Tokenizer, text: str, tokens: list[int], logprobs: Sequence[TokenLogprob | None]
) -> Iterator[Entry]:
    spelled, plain = tokenizer.token_bytes(skip_special_tokens=False), tokenizer.token_bytes()
    utf8, length = UTF8("replace"), 0
    for token, logprob in zip(tokens, logprobs, strict=True):
        yield Entry(token, min(length, len(text)), logprob)
        data = plain[token]
        # A special token has text only if the prompt spells it out.
        if not data and text.startswith(name := spelled[token].decode(errors="replace"), length):
            length += len(name)
        else:
            length += len(utf8.decode(data))


class LogprobStream:
    """Turns one choice's tokens and log-probabilities into entries, and gives them out with the text."""

    def __init__(self, token_bytes: TokenBytes) -> None:
        """token_bytes: the bytes of each token in the answer's text."""
        self._bytes = token_bytes
        self._utf8 = UTF8("replace")
        self._length = 0  # characters of the tokens so far
        self._held: deque[Entry] = deque()

    def begin(self, prompt: PromptEntries) -> None:
        """The text begins with this prompt. This stream gives out only the prompt's last entries (`rest`)."""
        self._held.extend(prompt.rest)
        self._length = prompt.length

    def push(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprob]) -> None:
        for token, logprob in zip(tokens, logprobs, strict=True):
            self._held.append(Entry(token, self._length, logprob))
            self._length += len(self._utf8.decode(self._bytes[token]))

    def take(self, sent: int) -> list[Entry]:
        """Removes and returns the entries of tokens that begin in the first `sent` characters."""
        taken = []
        while self._held and self._held[0].offset < sent:
            taken.append(self._held.popleft())
        return taken

    def rest(self) -> list[Entry]:
        """Removes and returns all other entries, for a text that did not end at a stop string. They include
        tokens that add no character."""
        rest = list(self._held)
        self._held.clear()
        return rest


def completion_logprobs(entries: Sequence[Entry], tokenizer: Tokenizer) -> CompletionLogprobs:
    names = tokenizer.token_names
    tops: list[dict[str, float] | None] = []
    for token, _, logprob in entries:
        if logprob is None:
            tops.append(None)
        else:
            top = {names[i]: p for i, p in logprob.top}
            tops.append(top | {names[token]: logprob.logprob})
    return CompletionLogprobs(
        [e.offset for e in entries],
        [None if e.logprob is None else e.logprob.logprob for e in entries],
        [names[e.token] for e in entries],
        tops,
    )


def chat_logprobs(entries: Sequence[Entry], tokenizer: Tokenizer) -> ChatLogprobs:
    names, data = tokenizer.token_names, tokenizer.token_bytes(skip_special_tokens=False)
    content = []
    for token, _, logprob in entries:
        assert logprob is not None, "a chat's answer does not begin with its prompt"
        top = [TopLogprob(names[i], p, list(data[i])) for i, p in logprob.top]
        content.append(ChatLogprob(names[token], logprob.logprob, list(data[token]), top))
    return ChatLogprobs(content)
