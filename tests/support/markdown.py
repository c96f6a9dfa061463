"""Reads Markdown pages for the tests of the docs: paragraphs, sentences, links, code."""

from __future__ import annotations

import re
from collections.abc import Iterator

FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```[^\n]*$", re.M | re.S)
COMMENT = re.compile(r"<!--.*?-->", re.S)
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
ITEM = re.compile(r"^ *(?:[-*]|\d+\.) +")
SENTENCE_END = re.compile(r"(?<=[.!?])[\"')*_]*\s+")
ABBREVIATION = re.compile(r"\b(e\.g|i\.e|vs|cf)\.")


def code_blocks(text: str) -> list[tuple[str, str]]:
    """(language, content) of each fenced block. The language can be empty."""
    return [(block[2], block[3]) for block in FENCE.finditer(text)]


def without_code_blocks(text: str) -> str:
    return COMMENT.sub("", FENCE.sub("", text))


def paragraphs(text: str) -> Iterator[str]:
    """Paragraphs and list items, each as one line. Headings, tables, pictures and code blocks are left out.

    >>> list(paragraphs("# T\\n\\nOne\\nline.\\n\\n- item\\n  more\\n- next\\n\\n| a |\\n"))
    ['One line.', 'item more', 'next']
    """
    held: list[str] = []
    for line in [*without_code_blocks(text).splitlines(), ""]:
        bare = line.strip()
        ends = not bare or bare[0] in "|#" or bare.startswith("![") or ITEM.match(line)
        if ends and held:
            yield " ".join(held)
            held = []
        if bare and (not ends or ITEM.match(line)):
            held.append(ITEM.sub("", line).strip())


def sentences(text: str) -> Iterator[str]:
    """The sentences of the paragraphs. A link counts as its text, code in backticks as one word."""
    for paragraph in paragraphs(text):
        plain = CODE.sub("CODE", LINK.sub(r"\2", paragraph))
        yield from SENTENCE_END.split(ABBREVIATION.sub(r"\1", plain))


def words(sentence: str) -> list[str]:
    return [word for word in sentence.split() if re.search(r"\w", word)]


def links(text: str) -> list[str]:
    """The targets of links and pictures, also in tables."""
    return [link[3] for link in LINK.finditer(without_code_blocks(text))]


def anchors(text: str) -> set[str]:
    """The names that `#...` can refer to on the page, made from headings as GitHub does."""
    found = set()
    for heading in re.findall(r"^#+ +(.*)$", without_code_blocks(text), re.M):
        plain = LINK.sub(r"\2", heading).replace("`", "").lower()
        found.add(re.sub(r"[^\w\- ]", "", plain).replace(" ", "-"))
    return found


def code_words(text: str) -> list[str]:
    """The texts in backticks, also in tables."""
    return CODE.findall(without_code_blocks(text))
