"""Peak memory of loading, measured as resident memory in a process of its own."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.checkpoints import write_checkpoint

PEAK = """
import sys
import torch
from nextn.families.quantization import Fp8Blocks
from nextn.models.fp8 import dequantize
from nextn.models.loader import load_checkpoint

def status(key):
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(key))

folder, kind = sys.argv[1:]
torch.set_num_threads(1)
shapes = {f"{i}.weight": (1024, 2560) for i in range(20)}
weights = {name: torch.empty(shape, dtype=torch.bfloat16) for name, shape in shapes.items()}
total = sum(t.numel() * t.element_size() for t in weights.values())
# torch's own code comes into memory on first use
values = torch.ones(8, 8).to(torch.float8_e4m3fn)
weights["0.weight"][:8, :8].copy_(dequantize(values, torch.ones(1, 1), (8, 8), torch.bfloat16))
open("/proc/self/clear_refs", "w").write("5")  # the peak starts anew
before = status("VmRSS")
quantization = Fp8Blocks() if kind == "fp8" else None
load_checkpoint(folder, shapes, lambda name, t: weights[name].copy_(t), quantization=quantization)
print((status("VmHWM") - before) / total)
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads Linux's /proc")
@pytest.mark.parametrize("kind", ["bf16", "fp8"])
def test_peak_memory_is_below_1_3_times_the_weights(tmp_path, kind):
    """105 MB of bf16 weights in one file. safetensors.safe_open would take 2.0 times."""
    tensors = {}
    for i in range(20):
        tensors[f"{i}.weight"] = torch.full((1024, 2560), float(i), dtype=torch.bfloat16)
        if kind == "fp8":
            tensors[f"{i}.weight"] = tensors[f"{i}.weight"].to(torch.float8_e4m3fn)
            tensors[f"{i}.weight_scale_inv"] = torch.ones(8, 20)
    write_checkpoint(tmp_path, {}, tensors)
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(tmp_path), kind], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert 0.95 < float(done.stdout) < 1.3, done.stdout
