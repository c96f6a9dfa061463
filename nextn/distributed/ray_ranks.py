"""Ranks as Ray actors: Ray places them in a cluster, starts them and ends them. The ranks communicate over
their own sockets.

    ranks = RayRanks()
    ranks.start({1: config_of_rank_1, 2: config_of_rank_2})
    ranks.close()

An actor runs `join_and_run` of `nextn.engine.tensor_rank`, like a process that nextn starts itself. Each rank
has one GPU, if there are GPUs. An actor sees only this GPU."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import signal
import socket
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from typing import Any

from nextn.config import EngineConfig
from nextn.distributed.gpus import gpu_at
from nextn.distributed.group import PeerGone

log = logging.getLogger("nextn.engine")

RANK_MODULE = "nextn.engine.tensor_rank"  # above this package
NODE = "ray.io/node-id"  # a label that Ray gives every node
HERE_SECONDS = 10.0  # for a cluster to answer
SHOWN = 300  # maximum characters of Ray's message about an actor's end


class NextnRank:
    """An actor, on the node where Ray has found room for it."""

    def run(self, config: EngineConfig, rank: int) -> int:
        code: int = importlib.import_module(RANK_MODULE).join_and_run(config, rank)
        return code


class RayRanks:
    """An actor for each rank but 0, in a placement group.

    The group has a bundle for each rank, with --threads CPUs and, on GPUs, one GPU. Rank 0 is this process,
    so its bundle is on this node and has no actor. It only prevents Ray from giving these cores and this GPU
    to others. The strategy is PACK: all on one node if possible, otherwise on few nodes. STRICT_PACK would
    refuse the second case. SPREAD would put ranks on several nodes without need."""

    def __init__(self) -> None:
        """Connects to the cluster of RAY_ADDRESS, or to the one that `ray start` has started on this machine.
        If there is none, starts a new one on this machine only.

        Raises ValueError if Ray is not installed or does not answer."""
        self._ray = ray = _imported()
        self._group: Any = None
        self._actors: list[Any] = []
        self._running: dict[int, Future[int]] = {}
        self._ours = not ray.is_initialized()  # a program that uses nextn.LLM may have connected before
        if self._ours:
            _connect(ray)
        self.host: str = ray.util.get_node_ip_address()  # this node, as the others know it

    def start(self, configs: Mapping[int, EngineConfig], gpus: bool = False) -> str | None:
        """configs: of each rank but 0, with its threads. gpus: whether each rank gets a GPU. Returns the uuid
        of rank 0's GPU. Raises ValueError if Ray has no room within --dist-timeout."""
        first = next(iter(configs.values()))
        self._group = self._placed(first, int(gpus))
        for rank, config in configs.items():
            options = {"num_cpus": first.threads, "max_restarts": 0, **self._on(rank, int(gpus))}
            self._actors.append(self._ray.remote(**options)(NextnRank).remote())
            self._running[rank] = self._actors[-1].run.remote(config, rank).future()
        return self._first_gpu(first.dist_timeout) if gpus else None

    def _on(self, rank: int, gpus: int) -> dict[str, Any]:
        """Ray's options for code that runs in a rank's bundle."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        place = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=rank)
        return {"scheduling_strategy": place, **({"num_gpus": gpus} if gpus else {})}

    def _first_gpu(self, timeout: float) -> str:
        """The uuid of the GPU in rank 0's bundle, found by a task in this bundle, which sees only this
        GPU."""
        looks = self._ray.remote(num_cpus=0, max_retries=0, **self._on(0, 1))(_seen_gpu)
        try:
            found: str = self._ray.get(looks.remote(), timeout=timeout)
        except self._ray.exceptions.RayError as e:
            raise ValueError(f"Ray does not say which GPU it has for rank 0: {_said(e)}") from e
        return found

    def _placed(self, config: EngineConfig, gpus: int) -> Any:
        """gpus: number of GPUs of each rank."""
        ray, size = self._ray, config.tp_size
        each = {"CPU": config.threads, **({"GPU": gpus} if gpus else {})}
        here = {NODE: ray.get_runtime_context().get_node_id()}
        group = ray.util.placement_group(
            [each] * size,
            strategy="PACK",
            bundle_label_selector=[here, *[{}] * (size - 1)],
        )
        if not group.wait(config.dist_timeout):
            ray.util.remove_placement_group(group)
            there, free = ray.cluster_resources(), ray.available_resources()
            said = (f"{free.get(kind, 0):g} of {there.get(kind, 0):g} {kind}s" for kind in each)
            needs = f"{config.threads} CPUs{' and a GPU' * gpus}"
            raise ValueError(
                f"Ray found no room in {config.dist_timeout:g} s (--dist-timeout) for {size} ranks of "
                f"{needs} each (--tp-size, --threads), one of them on this node: {', '.join(said)} are free"
            )
        nodes = ray.util.placement_group_table(group)["bundles_to_node_id"]
        addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
        placed: dict[str, list[str]] = defaultdict(list)
        for rank in range(size):
            placed[nodes[rank]].append(str(rank))
        said = (f"{', '.join(ranks)} on {addresses[node]}" for node, ranks in placed.items())
        log.info("Ray has room for ranks %s", "; ".join(said))
        return group

    def check(self) -> None:
        """Raises PeerGone for a rank that has ended."""
        for rank, running in self._running.items():
            if running.done():
                error = running.exception()
                said = _said(error) if error else f"exit code {running.result()}"
                raise PeerGone(f"rank {rank} has ended while others were waited for: {said}")

    def close(self) -> None:
        """Ends the actors and releases what Ray had reserved. When a program exits, Ray has already done
        so."""
        if not self._ray.is_initialized():
            return
        for actor in self._actors:
            self._ray.kill(actor)
        if self._group is not None:
            self._ray.util.remove_placement_group(self._group)
        if self._ours:
            self._ray.shutdown()


def _said(error: BaseException) -> str:
    return " ".join(str(getattr(error, "cause", None) or error).split())[:SHOWN]


def _seen_gpu() -> str:
    found = gpu_at(0)
    if not found.uuid:
        raise ValueError(found.kind)
    return found.uuid


def _imported() -> Any:
    try:
        import ray
    except ImportError as e:
        raise ValueError(
            f"--distributed-executor-backend ray needs the extra: pip install 'nextn[ray]' ({e})"
        ) from e
    return ray


def _connect(ray: Any) -> None:
    address = os.environ.get("RAY_ADDRESS", "")
    if "://" in address:
        raise ValueError(
            f"RAY_ADDRESS is {address}, an address for Ray's clients. nextn has to run on a node of the "
            "cluster: start it there, with RAY_ADDRESS=HOST:PORT or without"
        )
    host, _, port = address.rpartition(":")
    logging.getLogger("ray").setLevel(logging.WARNING)
    try:
        if host and port.isdigit():  # Ray itself looks for a minute
            socket.create_connection((host.strip("[]"), int(port)), timeout=HERE_SECONDS).close()
        with _kept_handler():
            ray.init(configure_logging=False, include_dashboard=False)
    except (OSError, RuntimeError) as e:
        there = f" at RAY_ADDRESS={address}" if address else ""
        raise ValueError(f"no Ray cluster answers{there}: {e}; start one with ray start --head") from e


@contextlib.contextmanager
def _kept_handler() -> Iterator[None]:
    """Keeps the handler of SIGTERM, which Ray would replace by one that ends the process. An engine's parent
    decides when the engine ends."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)
