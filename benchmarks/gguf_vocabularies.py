"""Compares the token ids of GGUF vocabularies with those of llama.cpp's test texts.

    python benchmarks/gguf_vocabularies.py --llama-cpp .peers/llamacpp/llama.cpp

A checkout of llama.cpp has small GGUF files without weights in models/: ggml-vocab-NAME.gguf, with texts in
NAME.gguf.inp and their token ids in NAME.gguf.out. The last line is JSON: for each vocabulary, the number of
texts and the texts whose ids differ. The exit code is 1 if a text differs.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from nextn.checkpoint_error import CheckpointError
from nextn.gguf.header import read_header
from nextn.gguf.metadata import Metadata
from nextn.gguf.tokenizer import tokenizer_files
from nextn.tokenizer.tokenizer import Tokenizer

BETWEEN = "\n__ggml_vocab_test__\n"  # separates texts


def differing(file: Path) -> tuple[int, list[str]]:
    """Returns (number of texts, the texts whose ids differ). Raises CheckpointError if nextn refuses the
    tokenizer."""
    with tempfile.TemporaryDirectory() as folder:
        for name, content in tokenizer_files(Metadata(file, read_header(file).values)).items():
            (Path(folder) / name).write_text(json.dumps(content), encoding="utf-8")
        tokenizer = Tokenizer.from_folder(folder)
    lines = Path(f"{file}.out").read_text(encoding="utf-8").splitlines()
    texts = Path(f"{file}.inp").read_bytes().decode().split(BETWEEN)[: len(lines)]  # the last one is empty
    return len(texts), [
        text
        for text, line in zip(texts, lines, strict=True)
        if tokenizer.encode(text, add_special_tokens=False) != list(map(int, line.split()))
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--llama-cpp", type=Path, required=True, metavar="DIR", help="checkout of llama.cpp")
    parser.add_argument("--output", type=Path, metavar="FILE", help="also write the JSON to this file")
    args = parser.parse_args()
    found: dict[str, object] = {}
    wrong = 0
    for file in sorted((args.llama_cpp / "models").glob("ggml-vocab-*.gguf")):
        name = file.stem.removeprefix("ggml-vocab-")
        if not Path(f"{file}.inp").exists():
            continue
        try:
            count, texts = differing(file)
        except CheckpointError as e:
            found[name] = {"refused": str(e).partition(": ")[2]}
            print(f"{name}: {e}")
            continue
        wrong += len(texts)
        found[name] = {"texts": count, "differ": texts}
        print(f"{name}: {count} texts, {len(texts)} differ")
    if not found:
        parser.error(f"{args.llama_cpp}/models has no ggml-vocab-*.gguf with texts")
    line = json.dumps(found, ensure_ascii=False)
    if args.output is not None:
        args.output.write_text(line + "\n", encoding="utf-8")
    print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
