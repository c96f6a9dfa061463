"""Makes Triton's interpreter faster, and its products independent of the shape of a tile.

The interpreter multiplies matrices with numpy, which uses a BLAS. A BLAS may add in another order if there
are more rows.
"""

from types import SimpleNamespace

import numpy as np
import triton.language as tl
from triton.runtime import interpreter


def sums_in_any_order() -> None:
    """From now on sums of products are computed in f64 and rounded once."""
    before = interpreter.InterpreterBuilder.create_dot

    def create_dot(self, a, b, d, *rest):
        if 8 in (a.dtype.primitive_bitwidth, b.dtype.primitive_bitwidth):
            return before(self, a, b, d, *rest)
        product = np.matmul(a.data, b.data, dtype=np.float64).astype(d.data.dtype)
        return interpreter.TensorHandle(product + d.data, d.dtype.scalar)

    interpreter.InterpreterBuilder.create_dot = create_dot


def patched_once() -> None:
    """The interpreter replaces functions of triton.language at every launch and every call of a function, in
    a third of its time. From now on they stay replaced. Nothing changes if triton's interpreter works
    in another way."""
    patches = interpreter._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    if isinstance(getattr(patches, "_changes", None), list):
        patches._changes.clear()  # so it restores nothing
        interpreter._patch_lang = lambda fn: patches
