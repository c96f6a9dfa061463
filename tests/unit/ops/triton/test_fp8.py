"""Products with e4m3 blocks under Triton's interpreter, against plain torch; bits of rows and of outputs.

On a machine with a GPU tests/gpu/test_triton.py runs the same checks compiled."""

import sys

import pytest
import torch

if torch.cuda.is_available():
    pytest.skip("tests/gpu runs these on the device", allow_module_level=True)
if sys.platform != "linux":
    pytest.skip(f"no triton for {sys.platform}: its kernels are not tested here", allow_module_level=True)

from support.fp8_checks import FP8_CHECKS
from support.triton_checks import Device


# Not bfloat16, which the interpreter computes wrongly and says nothing.
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["f32", "f16"])
@pytest.mark.parametrize("check", FP8_CHECKS)
def test_op(check, dtype):
    FP8_CHECKS[check](Device("cpu", dtype, large=False))
