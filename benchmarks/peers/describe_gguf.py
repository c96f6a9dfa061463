"""Describes a GGUF file, or a model split into several files, as one line of JSON, with llama.cpp's package.

    python describe_gguf.py LLAMA_CPP_FOLDER FILE.gguf             (in the environment "llamacpp")

So the facts that both engines are compared with do not come from nextn's reader.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def main(llama_cpp: Path, file: Path) -> None:
    sys.path.insert(0, str(llama_cpp / "gguf-py"))
    from gguf import GGUFReader

    reader = GGUFReader(file)

    def value(key: str, default: Any = None) -> Any:
        field = reader.fields.get(key)
        return default if field is None else field.contents()

    arch = value("general.architecture")
    ends = {value(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")} - {None}
    vocabulary = reader.fields.get("tokenizer.ggml.tokens")
    facts = {
        "vocab_size": len(vocabulary.data) if vocabulary else value(f"{arch}.vocab_size", 0),
        "bos": value("tokenizer.ggml.bos_token_id"),
        "ends": sorted(ends),
        "context": value(f"{arch}.context_length", 0),
        "layers": value(f"{arch}.block_count", 0),  # NextN layers included
        "nextn_layers": value(f"{arch}.nextn_predict_layers", 0),
        "experts": value(f"{arch}.expert_count", 0),
        "experts_used": value(f"{arch}.expert_used_count", 0),
        "tensors": [
            [t.name, t.tensor_type.name, int(t.n_bytes)]
            for part in parts(file, value("split.count", 1))
            for t in (reader if part == file else GGUFReader(part)).tensors
        ],
    }
    print(json.dumps(facts))


def parts(file: Path, count: int) -> list[Path]:
    """The files of a split model, by llama.cpp's naming; `file` is the first. Raises ValueError if it is
    another part."""
    if count < 2:
        return [file]
    stem = file.name.removesuffix(f"-00001-of-{count:05}.gguf")
    if stem == file.name:
        raise ValueError(f"it is one of {count} parts; name the first, ...-00001-of-{count:05}.gguf")
    return [file.with_name(f"{stem}-{n:05}-of-{count:05}.gguf") for n in range(1, count + 1)]


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
