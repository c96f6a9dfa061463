"""The kernels between the passes of a step give the numbers of the plain tensor code."""

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

if sys.platform != "linux":
    pytest.skip(f"no triton for {sys.platform}", allow_module_level=True)

from support.step_numbers import compare, drafting, many, request


@settings(max_examples=12)
@given(
    st.lists(request, min_size=1, max_size=4), drafting, st.integers(0, 3), st.sampled_from((1, 8)),
    st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_numbers_are_those_of_plain_code(requests, drafting, padding, row_align, seed):
    compare(requests, drafting, padding, row_align, np.random.default_rng(seed))


def test_many_requests():
    results = many(42)
    for column in range(6):  # of the numbers before tokens: all kinds came
        assert len(results[:, column].unique()) > 1
