"""The Triton kernels compiled for an A100 and an H100, on a machine that needs neither: what the interpreter
accepts the compiler may not, and a kernel that wants too much shared memory fails at its first launch."""

import json
import os
import subprocess
import sys

import pytest
from support.triton_compile import SHARED

if sys.platform != "linux":
    pytest.skip(f"no triton for {sys.platform}", allow_module_level=True)

SPILLED = 128  # bytes of a thread: some are loaded once for a tile
PRODUCTS = {"_matmul", "_absorb", "_gate_up", "_down", "_tile_bests", "_attend"}


def compiled(capability, folder, *options):
    """In a process where triton does not interpret."""
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    env |= {"TRITON_CACHE_DIR": str(folder), "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, "-m", "support.triton_compile", str(capability), *options],
        capture_output=True, text=True, env=env, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("capability", SHARED)
@pytest.mark.parametrize(("dtype", "models", "rows"), [("bfloat16", "v3", "1,300"), ("float32", "1b", "2")])
def test_every_kernel_compiles(capability, dtype, models, rows, tmp_path):
    found = compiled(capability, tmp_path, dtype, models, rows)
    names = {one["kernel"] for one in found}
    assert names >= PRODUCTS | {"_join", "_route", "_tiles", "_best_token", "_best_tile", "_add_norm"}
    for one in found:
        assert one["shared"] <= SHARED[capability], one
        assert one["spilled"] <= SPILLED, one
        if one["kernel"] in PRODUCTS and dtype == "bfloat16":
            assert one["instructions"], one


@pytest.mark.slow
@pytest.mark.parametrize("capability", SHARED)
def test_parts_of_attention_are_summed_in_one_order(capability, tmp_path):
    """Of a block of keys, by a program of one part and by one that goes through all of them: the layouts of
    its products are the same, so its sums are."""
    for model in ("v3", "1b", "tiny"):
        found = compiled(capability, tmp_path, "bfloat16", model, "1,2000", "attention")
        both = {("SPLIT=True" in one["shape"]): one["layouts"] for one in found if one["kernel"] == "_attend"}
        assert both[False] == both[True] != ""
