"""The Triton kernels under Triton's interpreter, on the CPU, against plain torch; bits of rows.

Needs triton, which torch's CUDA builds bring and its CPU builds do not:
`pip install 'nextn[cuda]' 'numpy<2.4'`. On a machine with a GPU tests/gpu/test_triton.py runs the same checks
compiled.
"""

import os

import numpy as np
import pytest
import torch

if torch.cuda.is_available():
    pytest.skip("tests/gpu runs these on the device", allow_module_level=True)
os.environ["TRITON_INTERPRET"] = "1"  # before the first import of triton
HOW = "run with: pip install 'nextn[cuda]' 'numpy<2.4'"
triton = pytest.importorskip("triton", reason=f"no triton here; {HOW}")
if triton.__version__ < "3.7" and np.lib.NumpyVersion(np.__version__) >= "2.4.0":
    pytest.skip(
        f"the interpreter of triton {triton.__version__} needs an older numpy; {HOW}", allow_module_level=True
    )

from support.triton_checks import CHECKS, Device  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")


# Not bfloat16, which the interpreter computes wrongly and says nothing.
@pytest.mark.parametrize("check", CHECKS)
def test_op_in_f32(check):
    CHECKS[check](Device("cpu", torch.float32, large=False))


@pytest.mark.parametrize("check", ["linear", "heads", "norm", "latent", "mlp", "experts"])
def test_op_in_f16(check):
    CHECKS[check](Device("cpu", torch.float16, large=False))
