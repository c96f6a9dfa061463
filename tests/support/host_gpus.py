"""Ranks that communicate as on GPUs, by torch.distributed, but have their arrays in the host's memory.

play() turns this process, and the ranks that it starts, into such ranks. `python -m support.host_gpus` is one
rank, and `python -m support.host_gpus serve ...` is a machine with such ranks.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Callable

from nextn.distributed.gpus import Gpu
from nextn.engine import gang, gpu_ranks

KIND = "NEXTN_TEST_GPU"  # environment variable: the kind of this machine's GPUs
Set = Callable[[object, str, object], None]


class HostGpu(Gpu):
    def take(self) -> None: ...


def host_gpu(place: int) -> HostGpu:
    """All ranks have the same GPU, so they communicate by Gloo."""
    return HostGpu(place, os.environ.get(KIND, "H100"), "the host")


def play(setattr: Set = setattr) -> None:
    setattr(gang, "RANK", "support.host_gpus")
    setattr(gpu_ranks, "device_type", lambda name: "cuda")
    setattr(gpu_ranks, "gpu_at", host_gpu)


if __name__ in ("__main__", "__mp_main__"):  # processes that a server spawns do this too
    play()
if __name__ == "__main__":
    sys.modules["support.host_gpus"] = sys.modules[__name__]
    if sys.argv[1].isdecimal():
        runpy.run_module("nextn.engine.tensor_rank", run_name="__main__", alter_sys=True)
    else:
        from nextn.cli import main

        sys.exit(main())
