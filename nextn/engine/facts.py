"""Facts that must be equal on all ranks of an engine, checked if ranks are started on several machines."""

from __future__ import annotations

import hashlib
from dataclasses import fields
from importlib import metadata
from pathlib import Path

import torch

import nextn
from nextn.config import EngineConfig, model_folder
from nextn.engine.device import device_type
from nextn.families.digest import digest
from nextn.models.fake import parse_acceptance
from nextn.ops.cpu.library import NoLibrary, choose_level

# Options that may differ between machines: hardware and file paths. The level of the kernels (--cpu-isa) must
# be equal, and so must --model-path, because grammars are made from the tokenizer there.
OWN = {
    "speculative_draft_model_path", "speculative_token_map", "init_expert_location", "threads", "numa",
    "cpu_isa", "node_rank", "dist_init_addr", "dist_timeout", "step_cost_cache",
}  # fmt: skip


def facts(config: EngineConfig) -> dict[str, str]:
    """The facts by name, worded for error messages. Raises ValueError if the model folder does not exist."""
    found = {"nextn's version": nextn.__version__, "torch's version": torch.__version__}
    found["--dp-size with --enable-dp-attention"] = str(config.groups)
    for field in fields(EngineConfig):
        if field.name not in OWN:
            found["--" + field.name.replace("_", "-")] = str(getattr(config, field.name))
    found["--tp-size"] = str(config.world_size)
    found["--device"] = device = device_type(config.device)
    if device == "cpu":
        found["the kernels' level (--cpu-isa)"] = _level(config.cpu_isa)
    else:
        found["triton's version"] = _version("triton")
    if parse_acceptance(config.model_path) is None:
        found["the model (its files' sizes, headers and samples)"] = digest(model_folder(config.model_path))
    if config.drafter_path is not None:
        found["the draft model"] = digest(model_folder(config.drafter_path))
    if (file := config.init_expert_location) != "trivial":
        found["the placement of experts (--init-expert-location)"] = _whole(Path(file))
    if config.speculative_token_map is not None:
        found["the token map"] = digest(Path(config.speculative_token_map))
    return found


def _level(isa: str) -> str:
    try:
        return choose_level(isa)[0]
    except NoLibrary:
        return "none"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"


def _whole(file: Path) -> str:
    """A digest of a whole small file. Raises ValueError if it cannot be read."""
    try:
        return hashlib.blake2b(file.read_bytes(), digest_size=8).hexdigest()
    except OSError as e:
        raise ValueError(f"{file}: cannot be read on this machine ({e.strerror})") from e
