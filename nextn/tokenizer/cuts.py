"""Finds places to cut a text so that its pieces together have the same tokens as the whole text.

A cut is after a letter (A-Z, a-z, 一-龥) and before a space, a line break or a punctuation mark other than '
and _. For the pre-tokenizers below this is exact:

- each of their expressions that matches the letter matches a run of letters (and marks), with at most one
  character before it and nothing after it: the match ends at the cut, as it would at the end of the text;
- none of them looks behind: the matches after the cut are those of a text that begins there;
- the one that looks ahead, `\\s+(?!\\S)`, looks at one character after whitespace: at most at the letter;
- the other steps separate digits or Chinese characters from the rest, independent of their surroundings.

A character after a cut that occurs in an added token is not used, because that token could contain the cut.
Texts are not cut at all for other pre-tokenizers, with a normalizer, or if added tokens absorb whitespace.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import tokenizers

from nextn.tokenizer.pipeline import normalizers, pre_tokenizers

WINDOW = 2**17  # characters searched at once; the GIL is released in between
BEFORE = "A-Za-z一-龥"
AFTER = ' \t\r\n!"#$%&()*+,-./:;<=>?@[\\]^`{|}~，。、！？；：'
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# Each of these expressions ends its match at the end of a run of letters.
WORDS = frozenset({
    GPT2,
    # DeepSeek V3
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""",
    # Llama 3, GLM 4
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    # Qwen 2 and 3
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
})  # fmt: skip
# Each of these separates some characters from all others, and matches no letter together with a character of
# AFTER.
CLASSES = frozenset({r"\p{N}{1,3}", r"\p{N}", "[一-龥\u3040-ゟ゠-ヿ]+"})


def cut_places(backend: tokenizers.Tokenizer) -> re.Pattern[str] | None:
    """Returns a pattern that matches the empty text at each cut; None if no cut is known to be exact."""
    added = list(backend.get_added_tokens_decoder().values())
    if normalizers(backend) or any(token.lstrip or token.rstrip for token in added):
        return None
    words = False
    for part in pre_tokenizers(backend):
        kind, expression = part["type"], part.get("pattern", {}).get("Regex")
        isolates = part.get("behavior") == "Isolated" and not part.get("invert")
        if kind == "ByteLevel" and not part["add_prefix_space"]:
            words |= part["use_regex"]
        elif kind == "Split" and isolates and expression is not None and plain(expression) in WORDS:
            words = True
        elif not (kind == "Split" and isolates and expression in CLASSES):
            return None
    spelled = {char for token in added for char in token.content}
    after = "".join(char for char in AFTER if char not in spelled)
    if not words or not after:
        return None
    return re.compile(rf"(?<=[{BEFORE}])(?=[{re.escape(after)}])")


def plain(expression: str) -> str:
    """Removes needless escapes of quotation marks, which some tokenizer.json files have."""
    return expression.replace('\\"', '"').replace("\\'", "'")


def pieces(text: str, places: re.Pattern[str] | None, size: int) -> Iterator[str]:
    """Cuts the text into pieces of `size` characters. Each piece extends to the next cut, or to the end if
    there is none."""
    begin = 0
    while begin < len(text):
        end = len(text) if places is None else next_cut(text, places, begin + size)
        yield text[begin:end]
        begin = end


def next_cut(text: str, places: re.Pattern[str], at: int) -> int:
    for begin in range(at, len(text), WINDOW):
        # One character more, because the pattern looks at the character after the cut.
        found = places.search(text, begin, begin + WINDOW + 1)
        if found is not None:
            return found.start()
    return len(text)
