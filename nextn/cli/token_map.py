"""nextn token-map: makes a draft vocabulary from a corpus, for --speculative-token-map.

nextn token-map --model-path /models/DeepSeek-V3 --size 32768 --output hot.json corpus/*.txt
nextn serve --model-path /models/DeepSeek-V3 --speculative-token-map hot.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from nextn.cli.errors import CommandError
from nextn.config import EMBEDDED, model_folder
from nextn.whole_file import write_whole

HELP = "write a corpus' most frequent tokens to a file, for --speculative-token-map"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model-path",
        "--model",
        default=EMBEDDED,
        help=f"checkpoint folder or GGUF file (default: {EMBEDDED})",
    )
    parser.add_argument("--size", type=int, default=32768, help="tokens to keep (default: 32768)")
    parser.add_argument("--output", type=Path, required=True, help="JSON file to write")
    parser.add_argument(
        "corpus",
        type=Path,
        nargs="+",
        help="text files; in .jsonl files, the `text` or `prompt` of each line is read",
    )


def run(args: argparse.Namespace) -> int:
    from nextn.tokenizer import Tokenizer
    from nextn.tokenizer.frequency import frequent_tokens

    try:
        tokenizer = Tokenizer.from_folder(model_folder(args.model_path))
        found = frequent_tokens(tokenizer, texts(args.corpus), args.size)
    except (OSError, ValueError) as e:
        raise CommandError(str(e)) from e
    write_whole(args.output, (json.dumps(found.ids) + "\n").encode())
    print(
        f"{len(found.ids)} of {tokenizer.vocab_size} tokens make {found.covered:.2%} of the corpus' "
        f"{found.tokens:,}; written to {args.output}"
    )
    return 0


def texts(paths: list[Path]) -> Iterator[str]:
    """Yields the texts of the files. Raises ValueError, which names the file and line, for a wrong line."""
    for path in paths:
        with path.open(encoding="utf-8") as lines:
            if path.suffix != ".jsonl":
                yield lines.read()
                continue
            for number, line in enumerate(lines, start=1):
                try:
                    record = json.loads(line)
                except ValueError as e:
                    raise ValueError(f"{path}, line {number}: not JSON ({e})") from e
                text = record.get("text", record.get("prompt")) if isinstance(record, dict) else None
                if not isinstance(text, str):
                    raise ValueError(f"{path}, line {number}: no `text` or `prompt`")
                yield text
