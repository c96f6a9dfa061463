"""What must be equal on a prefill and a decode server, so that both would compute the same pages, bit by
bit."""

from __future__ import annotations

import hashlib

import msgspec
import torch

import nextn
from nextn.config import FAKE, EngineConfig, model_folder
from nextn.engine.engine import Engine
from nextn.engine.startup import arithmetic
from nextn.families.digest import digest
from nextn.ops.cpu.library import FOLDER

PROTOCOL = 1  # version of the messages in messages.py
DEFAULT = "the default"  # arithmetic of the kernels' level
REMEDIES = {  # by field of Identity: how to make it the same on both servers
    "arithmetic": "start both with the same --cpu-isa LEVEL, and the same --gguf-activations",
}


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """layers: of the KV pool; `nextn_layers` of these belong to the drafter. width: elements per slot and
    layer. kernels: backend, level and build, which determine the rounding together with arithmetic: the
    formats of weights that are not multiplied in the level's default way, and how, such as "Q8_0 weights by
    dot products of bytes". Each machine measures which way is fastest, so it is said, not derived. model: a
    hash of the checkpoint's config and tokenizer, and of samples of its weights."""

    protocol: int = PROTOCOL
    version: str
    model: str
    weights: str  # how they are stored in memory, such as "bfloat16" or "int8"
    kernels: str
    page_size: int
    layers: int
    nextn_layers: int
    width: int
    dtype: str
    arithmetic: str = DEFAULT  # an older version does not say it

    def differences(self, other: Identity) -> list[str]:
        """The differences as text. self: the decode server's identity. other: the prefill server's.

        >>> a = Identity(version="1", model="m", weights="bfloat16", kernels="cpu avx2", page_size=16,
        ...              layers=3, nextn_layers=1, width=80, dtype="bfloat16")
        >>> a.differences(msgspec.structs.replace(a, page_size=32))
        ['page_size is 16 on the decode server and 32 on the prefill server']
        """
        return [
            f"{name} is {mine} on the decode server and {theirs} on the prefill server"
            + (f" ({REMEDIES[name]})" if name in REMEDIES else "")
            for name in self.__struct_fields__
            if (mine := getattr(self, name)) != (theirs := getattr(other, name))
        ]


def identity_of(engine: Engine) -> Identity:
    config, info = engine.config, engine.info
    # Native kernels of one build and level compute the same on every chip. torch selects its kernels by chip.
    how = [info.isa, build_hash(info.isa)] if info.isa else [torch.__version__, info.chip]
    kernels = " ".join([info.device, info.kernels, *how])
    made = config.quantization or "as stored"
    if made == "w4a16":
        made += f" {config.int4_group}"
    if config.ep_dispatch_dtype == "fp8":
        made += ", rows of experts in fp8"
    return Identity(
        version=nextn.__version__,
        model=fingerprint(config),
        weights=f"{config.load_format} {info.dtype} {made}",
        kernels=kernels,
        page_size=info.page_size,
        layers=info.cache_layers,
        nextn_layers=info.nextn_layers,
        width=info.cache_width,
        dtype=info.dtype,
        arithmetic=arithmetic(info.arithmetic) or DEFAULT,
    )


def build_hash(isa: str) -> str:
    """16 hex digits for the native kernels. Machines that built them with the same compiler have the same
    hash."""
    return hashlib.sha256((FOLDER / f"libnextn_{isa}.so").read_bytes()).hexdigest()[:16]


def fingerprint(config: EngineConfig) -> str:
    """16 hex digits that identify the model. They hash the name of a fake model, config and seed of dummy
    weights."""
    found = hashlib.sha256()
    for path in (config.model_path, config.drafter_path):
        if path is None:
            continue
        if path.partition(":")[0] == FAKE:
            found.update(path.encode())
        elif config.load_format == "dummy":
            found.update((model_folder(path) / "config.json").read_bytes())
            found.update(str(config.random_seed).encode())
        else:
            found.update(digest(model_folder(path)).encode())
    return found.hexdigest()[:16]
