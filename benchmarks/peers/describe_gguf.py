"""What a GGUF file holds, as one line of JSON, read by llama.cpp's own package.

    python describe_gguf.py LLAMA_CPP_FOLDER FILE.gguf             (in the environment "llamacpp")

So what both engines are given, and held against, does not come from the reader of either side.
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
        "architecture": arch,
        "vocab_size": len(vocabulary.data) if vocabulary else value(f"{arch}.vocab_size", 0),
        "bos": value("tokenizer.ggml.bos_token_id"),
        "ends": sorted(ends),
        "context": value(f"{arch}.context_length", 0),
        "layers": value(f"{arch}.block_count", 0),  # NextN layers included
        "nextn_layers": value(f"{arch}.nextn_predict_layers", 0),
        "experts": value(f"{arch}.expert_count", 0),
        "experts_used": value(f"{arch}.expert_used_count", 0),
        "tensors": [
            [t.name, t.tensor_type.name, [int(n) for n in t.shape], int(t.n_bytes)] for t in reader.tensors
        ],
        "keys": {
            key: value(key)
            for key in reader.fields
            if not key.startswith(("GGUF.", "tokenizer."))
        },
    }  # fmt: skip
    print(json.dumps(facts))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
