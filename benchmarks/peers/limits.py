"""The machine's limit of speed: the read bandwidth over the bytes that a token must read."""

from __future__ import annotations

import json
import math
import re
import subprocess
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nextn.bench.dev.micro.ceilings import Ceilings, make_ceilings
from nextn.bench.dev.micro.clock import measure
from nextn.bench.dev.micro.native_pool import native_pool
from nextn.families.config import ModelConfig
from nextn.models.names import expected_tensors

BYTES = {"float32": 4, "bfloat16": 2}  # bytes of a number
ROUNDS = 5


def read_bandwidth(threads: int) -> float:
    """The read bandwidth in bytes/s, measured like in `nextn bench micro`. It needs memory of eight times the
    last cache."""
    found: Ceilings = make_ceilings(native_pool(threads))
    measure(found.read, ROUNDS, 5.0)
    return found.read_bytes_per_s


def gguf_facts(python: Path, llama_cpp: Path, file: Path) -> dict[str, Any]:
    """The facts about a GGUF file from describe_gguf.py. Raises ValueError if it cannot read the file."""
    script = Path(__file__).with_name("describe_gguf.py")
    done = subprocess.run(
        [str(python), str(script), str(llama_cpp), str(file)], capture_output=True, text=True
    )
    if done.returncode:
        raise ValueError(f"{file} cannot be measured: {(done.stderr.splitlines() or ['?'])[-1]}")
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


def gguf_bytes(facts: Mapping[str, Any]) -> int:
    """Bytes of the file that one token reads without MTP: everything except the embedding table, the NextN
    layers and the experts that were not chosen. If there is no head, the embedding table is the head and
    counts."""
    target = facts["layers"] - facts["nextn_layers"]
    names = {name for name, *_ in facts["tensors"]}
    total = 0.0
    for name, _, size in facts["tensors"]:
        block = re.match(r"blk\.(\d+)\.", name)
        if block and int(block[1]) >= target:
            continue
        if name == "token_embd.weight" and "output.weight" in names:
            continue
        total += size * (facts["experts_used"] / facts["experts"] if "_exps." in name else 1)
    return round(total)


def gguf_formats(facts: Mapping[str, Any]) -> dict[str, int]:
    """Bytes of the file in each number format, in descending order."""
    found: Counter[str] = Counter()
    for _, format, size in facts["tensors"]:
        found[format] += size
    return dict(found.most_common())


def folder_bytes(cfg: ModelConfig) -> dict[str, int]:
    """Like `gguf_bytes` for a checkpoint folder, for each number format of the computation."""
    numbers = 0.0
    for name, shape in expected_tensors(cfg, 0).items():
        if name != "model.embed_tokens.weight":
            share = cfg.num_experts_per_tok / cfg.n_routed_experts if ".mlp.experts." in name else 1.0
            numbers += math.prod(shape) * share
    return {dtype: round(size * numbers) for dtype, size in BYTES.items()}


def limits(bandwidth: float, needed: Mapping[str, int]) -> dict[str, Any]:
    """The limits as a record. needed: bytes per token by number format. tok_s in the result: maximum speed of
    one text without MTP."""
    return {
        "read_gb_s": bandwidth / 1e9,
        "bytes_per_token": dict(needed),
        "tok_s": {dtype: bandwidth / size for dtype, size in needed.items()},
    }
