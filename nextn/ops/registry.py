"""Backends by name. A new backend is one line in FACTORIES."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

from nextn.ops.base import Ops
from nextn.ops.probe import Shape, product_modes

log = logging.getLogger("nextn.ops")


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


Factory = Callable[[set[Shape], torch.dtype, torch.device], Ops]
FACTORIES: dict[str, Factory] = {"reference": _reference}


def make_ops(shapes: set[Shape], dtype: torch.dtype, device: torch.device, name: str = "auto") -> Ops:
    """The backend for products with weights of these (n_out, n_in) shapes; `auto` takes the fastest there is.

    Raises ValueError for a name that is not in FACTORIES.
    """
    chosen = next(reversed(FACTORIES)) if name == "auto" else name
    if chosen not in FACTORIES:
        raise ValueError(f"no op backend {name!r}; there are: auto, {', '.join(FACTORIES)}")
    ops = FACTORIES[chosen](shapes, dtype, device)
    log.info("op backend %s (asked for %s) in %s on %s", ops.name, name, dtype, device.type)
    return ops
