"""Reads the file of a draft vocabulary: the tokens that the drafter may guess (FR-Spec, arXiv 2502.14856).

The file is a list of token ids, the most frequent ones of a corpus: .pt as SGLang reads it, .npy or .json.
"""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import torch

LARGEST_ID = 32  # maximum bytes of one id in a file: in JSON, with spaces
UNREADABLE = (  # what the three readers raise for files that are damaged or of another format
    OSError, ValueError, TypeError, RuntimeError, ArithmeticError, MemoryError, EOFError,
    pickle.UnpicklingError,
)  # fmt: skip
FRAME = 65536  # maximum bytes of a file in addition to its ids


def read_token_map(path: Path, vocab_size: int) -> tuple[int, ...]:
    """The ids, in the file's order. Raises ValueError if the file is not a list of ids of this vocabulary, or
    has an id twice."""
    try:
        size = path.stat().st_size
        if size > vocab_size * LARGEST_ID + FRAME:
            raise ValueError(f"it has {size} bytes, more than {vocab_size} ids need")
        if path.suffix == ".pt":
            found = torch.load(path, weights_only=True, map_location="cpu")
        elif path.suffix == ".npy":
            found = np.load(path, allow_pickle=False)
        else:
            found = json.loads(path.read_text(encoding="utf-8"))
        count = found.numel() if isinstance(found, torch.Tensor) else np.size(found)
        if count > vocab_size:
            raise ValueError(f"it has {count} ids, the model has {vocab_size}")
        ids = np.asarray(found)
    except UNREADABLE as e:
        raise ValueError(f"--speculative-token-map {path} cannot be read: {e}") from e
    if ids.ndim != 1 or ids.size == 0 or ids.dtype.kind not in "iu":
        raise ValueError(f"--speculative-token-map {path} does not contain a list of token ids")
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= vocab_size:
        wrong = low if low < 0 else high
        raise ValueError(
            f"--speculative-token-map {path} has token id {wrong}; the model's are 0..{vocab_size - 1}"
        )
    if len(np.unique(ids)) < ids.size:
        raise ValueError(f"--speculative-token-map {path} contains a token id twice")
    return tuple(ids.tolist())
