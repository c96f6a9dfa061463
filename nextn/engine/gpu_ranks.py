"""Chooses each rank's GPU from the options, and exchanges GPU facts between ranks of several machines."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Mapping
from typing import Any

from nextn.config import EngineConfig
from nextn.distributed.between_gpus import LOOKS, PATIENCE
from nextn.distributed.gpus import NO_GPU, Agreed, Gpu, Gpus, agreed, gpu_at
from nextn.distributed.memory import HEADER, Memory, Numbers
from nextn.distributed.place import PORT
from nextn.distributed.rendezvous import Met
from nextn.engine.device import device_type
from nextn.engine.ep_rank import EPRank
from nextn.parallel_config import TORCHRUN

log = logging.getLogger("nextn.engine")

HOST = "127.0.0.1"  # where ranks of one machine meet


def own_gpu(config: EngineConfig, rank: int) -> Gpu | None:
    """The GPU of a rank of this machine; None on CPUs."""
    if device_type(config.device) == "cpu":
        return None
    # Each of torchrun's processes counts as a machine, and may see all GPUs.
    first = int(os.environ.get("LOCAL_RANK", 0)) if TORCHRUN in os.environ else 0
    return gpu_at(first + rank - config.own_ranks.start)


def share_gpus(
    config: EngineConfig, ep_rank: EPRank | None = None
) -> tuple[list[Gpus], socket.socket | None] | tuple[None, None]:
    """The GPUs of all ranks of this engine, on this machine, and the listening socket where they connect.
    (None, None) on CPUs, unless ranks of the torch model share experts. ep_rank: rank 0's, if experts are
    shared. Then the ranks of all groups connect, and only group 0 has the socket. Raises the errors of
    `agreed`, and TimeoutError."""
    gpus = [gpu for rank in range(config.world_size) if (gpu := own_gpu(config, rank)) is not None]
    if not gpus and ep_rank is not None and ep_rank.by_torch:
        gpus = [NO_GPU] * config.world_size
    if not gpus:
        return None, None
    found = _agreed(gpus, [f"GPU {gpu.device}" if gpu.device >= 0 else "this machine" for gpu in gpus])
    group = 0 if ep_rank is None else ep_rank.group
    listener = socket.create_server((HOST, 0)) if group == 0 else None
    port = _port(listener, None if ep_rank is None else ep_rank.memory)
    own = range(group * config.tp_size, (group + 1) * config.tp_size)
    return [_gpus(gpus[rank], rank, found, HOST, port, HOST) for rank in own], listener


def _port(listener: socket.socket | None, memory: Memory | None) -> int:
    """The port where ranks connect. listener: group 0's. memory: of all groups; group 0 writes the port
    there. Raises TimeoutError."""
    if memory is None:
        assert listener is not None
        return int(listener.getsockname()[1])
    shown = Numbers(memory.mapped(HEADER), PORT)
    if listener is not None:
        shown[0] = listener.getsockname()[1]
    until = time.monotonic() + PATIENCE
    while not shown[0]:
        if time.monotonic() > until:
            raise TimeoutError(f"the engine of group 0 has not begun to load within {PATIENCE:g} s")
        time.sleep(LOOKS)
    return shown[0]


# On several machines, each rank sends its facts, and rank 0 decides. Both are JSON.


def offer(config: EngineConfig, gpu: Gpu | None) -> Mapping[str, Any] | None:
    if gpu is None:
        return None
    return {**gpu._asdict(), "place": f"node {config.node_rank} ({socket.gethostname()})"}


def agree(offers: Mapping[int, Any], port: int) -> Mapping[str, Any]:
    """offers: the facts of each rank. port: where rank 0 waits. Raises the errors of `agreed`."""
    by_rank = [offers[rank] for rank in sorted(offers)]
    gpus = [Gpu(each["device"], each["kind"], each["uuid"]) for each in by_rank]
    return {**_agreed(gpus, [each["place"] for each in by_rank])._asdict(), "port": port}


def gpus_met(gpu: Gpu, rank: int, met: Met, listener: socket.socket | None = None) -> Gpus:
    """listener: of rank 0, at the port."""
    if listener is not None:
        host = address = listener.getsockname()[0]
    else:
        to_0 = met.data[0]
        assert to_0 is not None
        host, address = to_0.getpeername()[0], to_0.getsockname()[0]
    found = Agreed(met.agreed["backend"], met.agreed["sharing"])
    return _gpus(gpu, rank, found, host, met.agreed["port"], address)


def _agreed(gpus: list[Gpu], places: list[str]) -> Agreed:
    found = agreed(gpus, places)
    if found.backend == "gloo" and gpus[0] is not NO_GPU:
        sharing = [str(rank) for rank, count in enumerate(found.sharing) if count > 1]
        log.warning(
            "of ranks %s, some have the same GPU: arrays go through the host's memory (Gloo), which is slow",
            ", ".join(sharing),
        )
    return found


def _gpus(gpu: Gpu, rank: int, found: Agreed, host: str, port: int, address: str) -> Gpus:
    return Gpus(gpu, found.backend, found.sharing[rank], host, port, address)
