"""A rank in its own process, for tests of TorchGroup.

    python -m support.torch_ranks RANK SIZE ADDRESS BACKEND TIMEOUT TASK

TASK is one of:

    gather                               checks all uses of `gather`; prints "gathered"
    wait                                 the same, then gathers forever; prints "ready" before, then the
                                         seconds until an exception and its text
    steps DEVICE OPS DTYPE               runs a small model's steps; prints a hash of the results
    exchange GROUPS SHARDS               as gather, with a world's exchanges; prints "exchanged"
    await GROUPS SHARDS                  as wait, with a world's exchanges
    world GROUPS SHARDS DEVICE OPS DTYPE prints a hash of the results of the steps of the rank's group; SHARDS
                                         may be several numbers with commas between, then one for each
    one GROUP DEVICE OPS DTYPE           the same on one device
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from nextn.distributed.torch_group import TorchGroup

TESTS = Path(__file__).parent.parent
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.int64, torch.bool)


def free_address() -> str:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{s.getsockname()[1]}"


def start_rank(
    rank: int, size: int, address: str, *task: str, backend: str = "gloo", timeout: float = 60
) -> subprocess.Popen[str]:
    path = os.pathsep.join((str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")))
    args = [str(rank), str(size), address, backend, str(timeout), *task]
    return subprocess.Popen(
        [sys.executable, "-m", "support.torch_ranks", *args], text=True,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip


def finish(ranks: list[subprocess.Popen[str]], timeout: float = 120) -> list[str]:
    """Returns the output of each rank. Kills all of them at the end."""
    try:
        done = [rank.communicate(timeout=timeout) for rank in ranks]
        for rank, (out, errors) in zip(ranks, done, strict=True):
            assert rank.returncode == 0, out + errors
        return [out.strip() for out, _ in done]
    finally:
        for rank in ranks:
            rank.kill()


def main(rank: int, size: int, address: str, backend: str, timeout: float, task: list[str]) -> None:
    from nextn.distributed.group import PeerGone
    from nextn.distributed.torch_group import TorchGroup

    if backend == "nccl":
        torch.cuda.set_device(rank)
    begin = time.monotonic()
    try:
        group = TorchGroup(rank, size, address, backend, timeout)
        if task[0] == "wait":
            check_gathers(group, "cuda" if backend == "nccl" else "cpu")
            whole = torch.zeros(2, size)
            print("ready", flush=True)
            while True:
                begin = time.monotonic()
                group.gather(whole, range(size + 1))
                time.sleep(0.01)
        elif task[0] in ("exchange", "await", "world"):
            world_task(group, *task)
        elif task[0] == "gather":
            check_gathers(group, "cuda" if backend == "nccl" else "cpu")
            print("gathered")
        elif task[0] == "one":
            from support.torch_worlds import group_hash

            print(group_hash(int(task[1]), None, *task[2:]))
        else:
            print(steps_hash(group, *task[1:]))
        group.close()
    except PeerGone as e:
        print(f"{time.monotonic() - begin:.1f} {e}", flush=True)
        os._exit(0)  # Gloo's threads can abort a process that ends normally after a peer has ended


def world_task(ranks: TorchGroup, task: str, groups: str, shards: str, *options: str) -> None:
    from support.exchanges import check_exchanges
    from support.torch_worlds import group_hash

    from nextn.distributed.torch_world import TorchWorld

    if task == "world":
        for count in map(int, shards.split(",")):
            world = TorchWorld(ranks, int(groups), count)
            print(group_hash(world.group, world, *options))
        return
    world = TorchWorld(ranks, int(groups), int(shards))
    check_exchanges(world, device="cuda" if ranks.backend == "nccl" else "cpu")
    if task == "exchange":
        print("exchanged")
    else:
        print("ready", flush=True)
        while True:
            world.exchange([torch.zeros(3)] * world.size, [3] * world.size)
            time.sleep(0.01)


def check_gathers(group: object, device: str) -> None:
    rank, size = group.rank, group.size  # type: ignore[attr-defined]
    gen = torch.Generator().manual_seed(0)
    for dtype in DTYPES:
        for rows in (0, 1, 5):
            for widths in ([8] * size, range(size), [0] * (size - 1) + [3]):
                bounds = [sum(widths[:r]) for r in range(size + 1)]
                high = 2 if dtype is torch.bool else 256
                shape = (rows * bounds[-1] * dtype.itemsize,)
                raw = torch.randint(0, high, shape, generator=gen, dtype=torch.uint8).to(device)
                want = raw.view(dtype).view(rows, bounds[-1])
                whole = torch.zeros_like(want)
                own = slice(bounds[rank], bounds[rank + 1])
                whole[:, own] = want[:, own]
                group.gather(whole, bounds)  # type: ignore[attr-defined]
                assert torch.equal(whole.flatten().view(torch.uint8), raw), (dtype, rows, widths)


def steps_hash(group: object, device: str, ops: str, dtype: str) -> str:
    from support.sharing import CONFIG, all_steps, shared_model, tensors_hash

    return tensors_hash(all_steps(shared_model(CONFIG, group, ops, getattr(torch, dtype), device)))


if __name__ == "__main__":
    rank, size, address, backend, timeout, *task = sys.argv[1:]
    main(int(rank), int(size), address, backend, float(timeout), task)
