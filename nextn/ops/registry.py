"""Makes op backends by name. A new backend is one line in FACTORIES."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable

import torch

from nextn.ops.base import Ops
from nextn.ops.probe import Shape, product_modes

log = logging.getLogger("nextn.ops")

OLDEST = (8, 0)  # compute capability: the first with bfloat16 on the matrix units


def _reference(shapes: set[Shape], dtype: torch.dtype, device: torch.device) -> Ops:
    from nextn.ops.reference import Reference

    modes = product_modes(shapes, dtype, device)
    slow = {shape: mode for shape, mode in modes.items() if mode != "direct"}
    if slow:
        log.warning(
            "matrix products of %d of %d shapes in %s on %s depend on their neighbours; they are computed "
            "in small pieces, which is slower but exact: %s",
            len(slow), len(modes), dtype, device.type, slow,
        )  # fmt: skip
    return Reference(modes)


def _triton(shapes: set[Shape], dtype: torch.dtype, device: torch.device) -> Ops:
    from nextn.ops.triton.ops import TritonOps

    return TritonOps()


Factory = Callable[[set[Shape], torch.dtype, torch.device], Ops]
FACTORIES: dict[str, Factory] = {"reference": _reference, "triton": _triton}


def make_ops(shapes: set[Shape], dtype: torch.dtype, device: torch.device, name: str = "reference") -> Ops:
    """The backend for products with weights of these (n_out, n_in) shapes.

    Raises ValueError for a name that is not in FACTORIES.
    """
    if name not in FACTORIES:
        raise ValueError(f"no op backend {name!r}; there are: {', '.join(FACTORIES)}")
    ops = FACTORIES[name](shapes, dtype, device)
    log.info("op backend %s in %s on %s", ops.name, dtype, device.type)
    return ops


def triton_obstacle() -> str | None:
    """Why the Triton kernels cannot run on this machine; None if they can."""
    if not torch.cuda.is_available():
        return "torch finds no CUDA device"
    if torch.cuda.get_device_capability() < OLDEST:
        return f"{torch.cuda.get_device_name()} is older than compute capability {OLDEST[0]}.{OLDEST[1]}"
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed (pip install 'nextn[cuda]')"
    return None
