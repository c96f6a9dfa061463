"""nextn: a serving engine for models with multi-token prediction (MTP).

`from nextn import LLM, SamplingParams` runs the engine in-process; `nextn serve` starts the server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["LLM", "SamplingParams", "SpeculativeParams", "__version__"]

if TYPE_CHECKING:
    from nextn.llm import LLM
    from nextn.request import SamplingParams, SpeculativeParams


def __getattr__(name: str) -> Any:
    # Lazy, so that `import nextn` does not import torch.
    if name == "LLM":
        from nextn.llm import LLM

        return LLM
    if name == "SamplingParams":
        from nextn.request import SamplingParams

        return SamplingParams
    if name == "SpeculativeParams":
        from nextn.request import SpeculativeParams

        return SpeculativeParams
    raise AttributeError(f"module 'nextn' has no attribute {name!r}")
