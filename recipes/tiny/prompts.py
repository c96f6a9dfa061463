"""Cuts the fixed held-out prompts that ship with the package from the held-out files.

`python recipes/tiny/prompts.py --tokenizer build/tiny/tokenizer.json` writes
`nextn/data/heldout.jsonl`: JSON lines {"source", "line", "prompt"}. A prompt starts at a class or def line
and ends at a line end inside a function's body, so that the code continues. The choice depends only on the
files and the tokenizer. The shipped file was made from CPython 3.11.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from data import Source, load
from tokenizers import Tokenizer

OUT = Path(__file__).parents[2] / "nextn" / "data" / "heldout.jsonl"
COUNT = 64
MOST_PER_FILE = 8
MIN_TOKENS, MAX_TOKENS = 60, 250


@dataclass(frozen=True)
class Prompt:
    """`line`: number of the prompt's first line in `source`, from 1."""

    source: str
    line: int
    prompt: str


def body_lines(tree: ast.AST) -> set[int]:
    """Numbers of lines at which a statement in a function ends and the function continues for at least two
    more lines."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) or node.end_lineno is None:
            continue
        for statement in ast.walk(node):
            end = getattr(statement, "end_lineno", None)
            if isinstance(statement, ast.stmt) and end is not None and end <= node.end_lineno - 2:
                lines.add(end)
    return lines


def cut(source: Source, tok: Tokenizer) -> Iterator[Prompt]:
    """Yields the prompts of one file, in order, without overlap."""
    text = source.text.splitlines(keepends=True)
    tree = ast.parse(source.text)
    ends = body_lines(tree)
    starts = sorted(
        min([node.lineno, *(d.lineno for d in node.decorator_list)])
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
    )
    free = 1
    for start in starts:
        if start < free:
            continue
        wanted = random.Random(f"{source.name}:{start}").randint(MIN_TOKENS + 10, MAX_TOKENS - 30)
        best = None
        for end in range(start, min(start + 60, len(text)) + 1):
            if end not in ends:
                continue
            prompt = "".join(text[start - 1 : end])
            n = len(tok.encode(prompt).ids)
            if MIN_TOKENS <= n <= MAX_TOKENS and (best is None or abs(n - wanted) < best[0]):
                best = abs(n - wanted), end, prompt
        if best is not None:
            yield Prompt(source.name, start, best[2])
            free = best[1] + 1


def choose(
    files: list[Source], tok: Tokenizer, count: int = COUNT, most: int = MOST_PER_FILE
) -> list[Prompt]:
    """`count` prompts, one from each file in turn, and at most `most` from a file."""
    pools = []
    for source in files:
        pool = list(cut(source, tok))
        random.Random(zlib.crc32(source.name.encode())).shuffle(pool)
        pools.append(pool[:most])
    picked = [pool[turn] for turn in range(most) for pool in pools if turn < len(pool)]
    return sorted(picked[:count], key=lambda p: (p.source, p.line))


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--tokenizer", type=Path, default=Path("build/tiny/tokenizer.json"))
    ap.add_argument("--out", type=Path, default=OUT)
    args = ap.parse_args()
    tok = Tokenizer.from_file(str(args.tokenizer))
    prompts = choose(load()[2], tok)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text("".join(json.dumps(asdict(p)) + "\n" for p in prompts), encoding="utf-8")
    lengths = [len(tok.encode(p.prompt).ids) for p in prompts]
    files = len({p.source for p in prompts})
    print(f"{args.out}: {len(prompts)} prompts from {files} files, {min(lengths)} to {max(lengths)} tokens")


if __name__ == "__main__":
    main()
