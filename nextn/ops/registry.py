"""Backends by name. A new backend is one line in FACTORIES."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

from nextn.ops.base import Ops

log = logging.getLogger("nextn.ops")


def _reference(shapes: set[tuple[int, int]], dtype: torch.dtype, device: torch.device) -> Ops:
    from nextn.ops.probe import row_invariant
    from nextn.ops.reference import Reference

    blocked = not row_invariant(shapes, dtype, device)
    if blocked:
        log.warning(
            "matrix products in %s on %s depend on the number of rows; running them in blocks of fixed "
            "size, which is slower but exact",
            dtype,
            device.type,
        )
    return Reference(blocked)


Factory = Callable[[set[tuple[int, int]], torch.dtype, torch.device], Ops]
FACTORIES: dict[str, Factory] = {"reference": _reference}


def make_ops(
    shapes: set[tuple[int, int]], dtype: torch.dtype, device: torch.device, name: str = "auto"
) -> Ops:
    """The backend for weights of these (n_out, n_in) shapes; `auto` takes the fastest there is.

    Raises ValueError for a name that is not in FACTORIES.
    """
    chosen = next(reversed(FACTORIES)) if name == "auto" else name
    if chosen not in FACTORIES:
        raise ValueError(f"no op backend {name!r}; there are: auto, {', '.join(FACTORIES)}")
    ops = FACTORIES[chosen](shapes, dtype, device)
    log.info("op backend %s (asked for %s) in %s on %s", ops.name, name, dtype, device.type)
    return ops
