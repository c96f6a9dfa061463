"""Architectures of GGUF files. Each has a file with two functions:

    config(meta, tensors, weights)   config.json, as in the model's original checkpoint
    tensors(meta, tensors)           the sources of the checkpoint's tensors, by the checkpoint's name

Keys and names are those that llama.cpp writes (conversion/) and reads (src/models/).
"""

from __future__ import annotations

import importlib
from typing import Any

from nextn.checkpoint_error import CheckpointError
from nextn.gguf.metadata import Metadata

ARCHITECTURES = {
    "deepseek2": "nextn.gguf.architectures.deepseek2",
    "llama": "nextn.gguf.architectures.llama",
    "qwen2": "nextn.gguf.architectures.qwen2",
    "qwen3": "nextn.gguf.architectures.qwen3",
    "glm4moe": "nextn.gguf.architectures.glm4moe",
}


def architecture(meta: Metadata) -> Any:
    """The module of a file's architecture. Raises CheckpointError if nextn does not serve it, or if the file
    contains no language model."""
    kind = meta.string("general.type", "model")
    if kind == "adapter":
        raise meta.error("general.type", "a LoRA adapter is not a model; give the model's own file")
    if kind == "mmproj" or meta.arch == "clip":
        raise CheckpointError(f"{meta.path}: it is an image projector (mmproj); give the model's own file")
    if meta.arch not in ARCHITECTURES:
        raise meta.error("general.architecture", f"supported are {', '.join(ARCHITECTURES)}")
    return importlib.import_module(ARCHITECTURES[meta.arch])
