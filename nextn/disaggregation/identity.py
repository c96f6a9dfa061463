"""What a prefill and a decode server must have in common, so that the pages of one are those that the other
would have computed, to the bit."""

from __future__ import annotations

import hashlib

import msgspec
import torch

import nextn
from nextn.config import FAKE, EngineConfig, model_folder
from nextn.engine.engine import Engine
from nextn.families.digest import digest
from nextn.ops.cpu.library import FOLDER

PROTOCOL = 1  # of the messages


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """page_bytes: of one page in all layers. layers: of the KV pool, `nextn_layers` of them the drafter's.
    kernels: backend, level and build, each of which may round otherwise. model: a hash of its config and of
    samples of its weights."""

    protocol: int = PROTOCOL
    version: str
    model: str
    weights: str  # how they are held, such as "bfloat16" or "int8"
    kernels: str
    page_size: int
    layers: int
    nextn_layers: int
    width: int
    dtype: str

    def differences(self, other: Identity) -> list[str]:
        """What is not the same, for people.

        >>> a = Identity(version="1", model="m", weights="bfloat16", kernels="cpu avx2", page_size=16,
        ...              layers=3, nextn_layers=1, width=80, dtype="bfloat16")
        >>> a.differences(msgspec.structs.replace(a, page_size=32))
        ['page_size is 16 here and 32 there']
        """
        return [
            f"{name} is {mine} here and {theirs} there"
            for name in self.__struct_fields__
            if (mine := getattr(self, name)) != (theirs := getattr(other, name))
        ]


def identity_of(engine: Engine) -> Identity:
    config, info = engine.config, engine.info
    # Native kernels of one build and level compute the same on every chip; torch's choose by the chip.
    how = [info.isa, build_hash(info.isa)] if info.isa else [torch.__version__, info.chip]
    kernels = " ".join([info.device, info.kernels, *how])
    made = config.quantization or "as stored"
    if made == "w4a16":
        made += f" {config.int4_group}"
    if config.gguf_activations == "int8":  # auto is bf16 here, as one machine alone computes no text
        made += ", inputs in int8"
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
    )


def build_hash(isa: str) -> str:
    """Of the native kernels. Two machines that built them with one compiler have the same."""
    return hashlib.sha256((FOLDER / f"libnextn_{isa}.so").read_bytes()).hexdigest()[:16]


def fingerprint(config: EngineConfig) -> str:
    """Tells one model from another: of fake models the name, of dummy weights the config and the seed."""
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
