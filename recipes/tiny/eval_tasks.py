"""Makes the two tasks of `nextn eval` from the held-out files.

`python recipes/tiny/eval_tasks.py` writes JSON lines into `nextn/data/eval/`. Their "split" is "test" or
"fewshot", and few-shot examples come from other files than the tests:

- `next_line.jsonl`: {"source", "line", "context", "choices", "answer"}: which of four lines is next. The
  other three are lines of the same file, of similar length, with the real line's indentation.
- `rest_of_line.jsonl`: {"source", "line", "context", "target"}: how a line that is cut after a word
  continues.

A context begins at a function's def line. The choice depends only on the files and the tokenizer. The shipped
tasks were made from CPython 3.11.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from data import Source, load
from tokenizers import Tokenizer

DATA = Path(__file__).parents[2] / "nextn" / "data"
TEST, FEWSHOT = 100, 5
MOST_PER_FILE = 8
MIN_TOKENS, MAX_TOKENS = 40, 200  # length of a context
MIN_CHARS, MAX_CHARS = 14, 70  # length of a line without its indentation
CHOICES = 4
LIKE = 12  # maximum difference in length of a wrong line, in characters
LEAST_REST = 6  # minimum length of a target, in characters


@dataclass(frozen=True)
class Place:
    """A one-line statement in a function. `context`: the text from the def line up to the statement."""

    source: str
    line: int
    context: str
    text: str  # without the line end


def statements(source: Source) -> list[tuple[int, int]]:
    """(first line of the function, line) of every one-line statement in a function."""
    found: dict[int, int] = {}
    for function in ast.walk(ast.parse(source.text)):
        if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        for node in ast.walk(function):
            if not isinstance(node, ast.stmt) or node.lineno != node.end_lineno:
                continue
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                continue  # a docstring
            # Inner functions come later, so the outermost one's first line stays.
            found.setdefault(node.lineno, function.lineno)
    return sorted((first, line) for line, first in found.items())


def places(source: Source, tok: Tokenizer) -> Iterator[Place]:
    lines = source.text.splitlines()
    for first, line in statements(source):
        text = lines[line - 1]
        context = "\n".join(lines[first - 1 : line - 1]) + "\n"
        if not MIN_CHARS <= len(text.strip()) <= MAX_CHARS or "#" in text or ";" in text:
            continue
        if MIN_TOKENS <= len(tok.encode(context).ids) <= MAX_TOKENS:
            yield Place(source.name, line, context, text)


def next_line(place: Place, source: Source, rng: random.Random) -> dict[str, object] | None:
    """The document for this place, or None if the file has too few similar lines."""
    real = place.text.strip()
    lines = source.text.splitlines()
    pool = {lines[line - 1].strip() for _, line in statements(source)}
    seen = {line.strip() for line in place.context.splitlines()} | {real}
    like = sorted(w for w in pool - seen if abs(len(w) - len(real)) <= LIKE and len(w) >= MIN_CHARS)
    if len(like) < CHOICES - 1:
        return None
    choices = [real, *rng.sample(like, CHOICES - 1)]
    rng.shuffle(choices)
    indentation = place.text[: len(place.text) - len(place.text.lstrip())]
    return {
        "source": place.source,
        "line": place.line,
        "context": place.context,
        "choices": [indentation + choice for choice in choices],
        "answer": choices.index(real),
    }


def rest_of_line(place: Place, source: Source, rng: random.Random) -> dict[str, object] | None:
    """The document for this place, or None if the line has no word in its middle after which to cut."""
    cuts = [m.end() for m in re.finditer(r"\w+", place.text)]
    middle = len(place.text) - len(place.text.lstrip()) + 4
    cuts = [cut for cut in cuts if middle <= cut <= len(place.text) - LEAST_REST]
    if not cuts:
        return None
    cut = rng.choice(cuts)
    return {
        "source": place.source,
        "line": place.line,
        "context": place.context + place.text[:cut],
        "target": place.text[cut:].rstrip(),
    }


def make(name: str, files: list[Source], tok: Tokenizer) -> list[dict[str, object]]:
    """The documents of one task. The files take turns, so that the first documents come from many files. The
    last files are used for the few-shot examples."""
    task = {"next_line": next_line, "rest_of_line": rest_of_line}[name]
    pools = []
    for source in files:
        rng = random.Random(zlib.crc32(f"{name}:{source.name}".encode()))
        found = list(places(source, tok))
        rng.shuffle(found)
        made = [doc for place in found if (doc := task(place, source, rng)) is not None]
        if made:
            pools.append(made[:MOST_PER_FILE])
    examples, tests = pools[-FEWSHOT:], pools[:-FEWSHOT]
    chosen = [pool[turn] for turn in range(MOST_PER_FILE) for pool in tests if turn < len(pool)][:TEST]
    return [{"split": "test", **doc} for doc in chosen] + [
        {"split": "fewshot", **pool[0]} for pool in examples
    ]


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--tokenizer", type=Path, default=DATA / "nextn-tiny" / "tokenizer.json")
    ap.add_argument("--out", type=Path, default=DATA / "eval")
    args = ap.parse_args()
    tok = Tokenizer.from_file(str(args.tokenizer))
    files = load()[2]
    for name in ("next_line", "rest_of_line"):
        docs = make(name, files, tok)
        out = args.out / f"{name}.jsonl"
        out.write_text("".join(json.dumps(doc) + "\n" for doc in docs), encoding="utf-8")
        sources = len({doc["source"] for doc in docs})
        print(f"{out}: {len(docs)} documents from {sources} files")


if __name__ == "__main__":
    main()
