"""The Triton kernels compiled for an A100 and an H100, on a machine that needs neither: what the interpreter
accepts the compiler may not, and a kernel that wants too much shared memory fails at its first launch."""

import json
import os
import subprocess
import sys

import pytest
from support.all_cases import ALL_CASES, few_or_all
from support.triton_compile import SHARED

if sys.platform != "linux":
    pytest.skip(f"no triton for {sys.platform}", allow_module_level=True)

SPILLED = 128  # bytes of a thread: some are loaded once for a tile
PRODUCTS = {"_matmul", "_absorb", "_gate_up", "_down", "_tile_bests", "_attend"}
OTHERS = {
    "_join", "_write_kv", "_route", "_best_token", "_best_tile", "_add_norm", "_round", "_embed",
    "_embed_beside",
}  # fmt: skip


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


@pytest.fixture(scope="module")
def on_h100(tmp_path_factory):
    """By dtype. Of e4m3 blocks the larger tiles; experts have the smaller ones."""
    rows = ";".join(("2", "1,3,16,512", "1,300" if ALL_CASES else "300"))
    found = compiled(90, tmp_path_factory.mktemp("compiled"), "bfloat16,int32,fp8", "v3", rows)
    return {dtype: [one for one in found if one["dtype"] == dtype] for dtype in ("bfloat16", "int32", "fp8")}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("capability", "names"),
    # Few rows split the keys of attention into parts. Many have the largest tiles: on an A100, which has less
    # shared memory; only products need much of it.
    few_or_all(
        [pytest.param(90, PRODUCTS | OTHERS, id="few rows on an H100")],
        [pytest.param(80, PRODUCTS, id="many rows on an A100")],
    ),
)
def test_every_kernel_compiles(capability, names, on_h100, tmp_path):
    if capability == 90:
        found = on_h100["bfloat16"]
    else:
        found = compiled(80, tmp_path, "bfloat16", "v3", "300", ",".join(sorted(names)))
    assert {one["kernel"] for one in found} >= names
    for one in found:
        assert one["shared"] <= SHARED[capability], one
        assert one["spilled"] <= SPILLED, one
        if one["kernel"] in PRODUCTS:
            assert "mma" in one["instructions"], one
    kinds = ("SPLIT=True", "LATENT=True")
    attend = {
        tuple(kind in one["shape"] for kind in kinds): one for one in found if one["kernel"] == "_attend"
    }
    # A block of keys is summed in one order by a program of one part and by one that goes through all: it has
    # the same layout in both, and parts are put together without what only one of them might fuse.
    for latent in (False, True) if "_join" in names else ():
        assert attend[False, latent]["layouts"] == attend[True, latent]["layouts"]
    parts = [one for one in found if one["kernel"] in ("_attend", "_join")]
    assert not any("FFMA" in one["instructions"] for one in parts)


@pytest.mark.slow
def test_what_a_step_launches_between_its_passes_compiles(on_h100):
    """Once for requests up to each number of lanes, whatever the number of requests."""
    for kernel, variants in (("_begin", 2), ("_verify", 3), ("_guessed", 8), ("_end", 1)):
        some = [one for one in on_h100["int32"] if one["kernel"] == kernel]
        assert len(some) == variants, some
        assert all(one["spilled"] == 0 for one in some), some


@pytest.mark.slow
def test_products_with_e4m3_blocks_compile(on_h100):
    """On a GPU that converts e4m3: from 8.9 on."""
    products = [one for one in on_h100["fp8"] if "B=128" in one["shape"]]
    assert {one["kernel"] for one in products} == {"_matmul", "_gate_up", "_down"}
    for one in products:
        assert "mma" in one["instructions"], one
        assert one["shared"] <= SHARED[90], one
        assert one["spilled"] <= SPILLED, one
        # The order of a sum is the same in tiles of all sizes: wgmma's would be another.
        assert "wgmma" not in one["instructions"], one
        assert one["inputs"] == "4", one
