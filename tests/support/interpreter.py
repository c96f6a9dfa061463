"""Triton's interpreter, with products whose bits do not depend on the shape of a tile.

The interpreter multiplies matrices with numpy, which uses a BLAS. A BLAS may add in another order if there
are more rows.
"""

import numpy as np
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
