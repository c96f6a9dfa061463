"""The Triton kernels under Triton's interpreter, on the CPU, against plain torch; bits of rows.

On a machine with a GPU tests/gpu/test_triton.py runs the same checks compiled. On Linux triton is among the
packages of the tests (`pip install 'nextn[test]'`), and a test run without it fails; elsewhere triton has no
wheels.
"""

import inspect
import re
import sys

import pytest
import torch

if torch.cuda.is_available():
    pytest.skip("tests/gpu runs these on the device", allow_module_level=True)
if sys.platform != "linux":
    pytest.skip(f"no triton for {sys.platform}: its kernels are not tested here", allow_module_level=True)

from support import triton_checks
from support.all_cases import few_or_all
from support.triton_checks import CHECKS, Device

from nextn.ops.triton.ops import TritonOps


# Not bfloat16, which the interpreter computes wrongly and says nothing. Shared experts are in f16, below.
@pytest.mark.parametrize(
    "check", few_or_all([name for name in CHECKS if name != "experts_with_shared"], ["experts_with_shared"])
)
def test_op_in_f32(check):
    CHECKS[check](Device("cpu", torch.float32, large=False))


# Those that round differently in few bits. Both kinds of attention have one kernel.
@pytest.mark.parametrize(
    "check",
    few_or_all(
        ["fp8_rows", "linear", "norm", "latent", "attention", "experts_with_shared", "best_of_product"],
        ["gqa_attention"],
    ),
)
def test_op_in_f16(check):
    CHECKS[check](Device("cpu", torch.float16, large=False))


def test_every_op_has_a_check():
    ops = {name for name in vars(TritonOps) if inspect.isfunction(getattr(TritonOps, name))}
    called = set(re.findall(r"\b(?:ops|TritonOps\(\))\.(\w+)\(", inspect.getsource(triton_checks)))
    assert {"linear", "mla_attention"} <= ops
    assert ops - {"naive_attention"} <= called  # that one is plain torch
