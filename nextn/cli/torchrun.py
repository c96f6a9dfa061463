"""Adapts the config of a rank that torchrun started: `torchrun --nproc-per-node 2 -m nextn serve`.

torchrun starts one process for every rank and puts the rank into its environment. For nextn, each process is
a node with one rank. Rank 0 publishes its address through torchrun's store.
"""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Mapping
from datetime import timedelta

from nextn.config import usable_cores
from nextn.parallel_config import TORCHRUN
from nextn.server_config import ServerConfig


def under_torchrun(config: ServerConfig, environment: Mapping[str, str]) -> ServerConfig:
    """The config with this process's rank from torchrun's environment. It is unchanged if torchrun started
    only one process, or none. Raises ValueError if the options contradict the environment."""
    size = int(environment.get("WORLD_SIZE", 1)) if TORCHRUN in environment else 1
    if size == 1:
        return config
    if config.nnodes > 1:
        raise ValueError(
            f"--nnodes {config.nnodes}: torchrun has started {size} ranks already; leave --nnodes, "
            "--node-rank and --dist-init-addr out, or start nextn without torchrun"
        )
    if config.tp_size not in (1, size):
        raise ValueError(f"--tp-size {config.tp_size}: torchrun has started {size} ranks; leave it out")
    rank, address = int(environment["RANK"]), config.dist_init_addr
    here = int(environment.get("LOCAL_WORLD_SIZE", 1))
    threads = config.threads or max(1, usable_cores() // here)
    if address is None:
        address = _agreed(environment, rank, config.dist_timeout)
    made = dataclasses.replace(
        config, tp_size=size, nnodes=size, node_rank=rank, dist_init_addr=address, threads=threads
    )
    made.check()
    return made


def _agreed(environment: Mapping[str, str], rank: int, timeout: float) -> str:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    host = environment["MASTER_ADDR"]
    store = TCPStore(
        host, int(environment["MASTER_PORT"]), is_master=False, timeout=timedelta(seconds=timeout)
    )
    key = f"nextn/{environment[TORCHRUN]}/{environment.get('TORCHELASTIC_RESTART_COUNT', 0)}"
    if rank == 0:
        with socket.create_server((host, 0)) as free:
            store.set(key, f"{host}:{free.getsockname()[1]}")
    found: str = store.get(key).decode()
    return found
