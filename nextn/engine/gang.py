"""The other ranks of an engine, as rank 0 sees them: it starts them, connects to them, and ends them.

On one machine, all are children of this process and share memory with it. With --nnodes, every rank connects
to rank 0 over the network. This process starts the ranks of its own machine, or Ray starts all of them."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from nextn.config import EngineConfig, usable_cores
from nextn.distributed import rendezvous
from nextn.distributed.gpus import Gpus, make_current
from nextn.distributed.group import PeerGone
from nextn.distributed.memory import Memory
from nextn.distributed.mesh import MeshRanks
from nextn.distributed.numa import pin
from nextn.distributed.process import RANK, RankProcess
from nextn.distributed.ranks import Ranks
from nextn.distributed.ray_ranks import RayRanks
from nextn.distributed.rendezvous import Host, Met
from nextn.distributed.shared import SharedRanks
from nextn.distributed.wire import GONE, Ended, cut, send_last
from nextn.draft import MAX_DRAFTS, draft_window
from nextn.engine.ep_rank import EPRank
from nextn.engine.facts import facts
from nextn.engine.gpu_ranks import agree, gpus_met, offer, own_gpu, share_gpus
from nextn.engine.rank_log import line_start

HEARD_SECONDS = 1.0  # time that ranks have to receive the message that the engine has ended


class Gang:
    """own: rank 0's `Ranks` object. config: rank 0's. links: connections to the other ranks, from rank 1 on.
    processes: the rank processes that this process has started, by rank."""

    def __init__(self, config: EngineConfig, ep_rank: EPRank | None = None) -> None:
        """ep_rank: rank 0's, if ranks of one machine share experts. Raises the errors of `Host`, `Host.meet`
        and `RayRanks`."""
        self.config = config
        self.processes: dict[int, RankProcess] = {}
        self.links: list[Connection] = []
        self._ray = RayRanks() if config.distributed_executor_backend == "ray" else None
        self._memory = Memory() if config.nnodes == 1 and self._ray is None else None
        self._mesh: MeshRanks | None = None
        self._listener: socket.socket | None = None
        self._nodes: list[socket.socket] = []
        try:
            if self._memory is not None:
                self.own = self._sharing(config, self._memory, ep_rank)
            else:
                self.own = self._joined(config) if self._ray is None else self._placed(self._ray)
        except BaseException:
            self.close()
            raise

    def _sharing(self, config: EngineConfig, memory: Memory, ep_rank: EPRank | None) -> Ranks:
        gpus, self._listener = share_gpus(config, ep_rank)
        start(config, memory, self.processes, ep_rank, gpus)
        self.links += [process.link for process in self.processes.values()]
        group, first = 0 if ep_rank is None else ep_rank.group, None if gpus is None else gpus[0]
        ranks = shared_ranks(config, 0, memory, group, first)
        ranks.listener = self._listener
        return ranks

    def _joined(self, config: EngineConfig) -> Ranks:
        with contextlib.closing(
            Host(config.rank_0, config.tp_size, facts(config), config.nnodes - 1)
        ) as host:
            start(config, None, self.processes)
            return self._meshed(config, host, partial(check_processes, self.processes))

    def _placed(self, ray: RayRanks) -> Ranks:
        """Each rank counts as a separate node, because Ray decides which ranks share a machine. They get only
        options of the engine, not of the server."""
        options = {field.name: getattr(self.config, field.name) for field in dataclasses.fields(EngineConfig)}
        options |= {"nnodes": self.config.tp_size, "numa": "off"}
        self.config = config = EngineConfig(**options)
        with contextlib.closing(Host((ray.host, 0), config.tp_size, facts(config))) as host:
            at = "[{}]:{}".format(*host.address)
            others = range(1, config.tp_size)
            configs = {r: dataclasses.replace(config, node_rank=r, dist_init_addr=at) for r in others}
            uuid = ray.start(configs, gpus=own_gpu(config, 0) is not None)
            if uuid is not None:
                make_current(uuid)
            return self._meshed(config, host, ray.check)

    def _meshed(self, config: EngineConfig, host: Host, check: Callable[[], None]) -> Ranks:
        gpu = own_gpu(config, 0)

        def agreed(offers: Mapping[int, Any]) -> Mapping[str, Any] | None:
            if gpu is None:
                return None
            self._listener = rendezvous.listen(host.address[0], 0)
            return agree({0: offer(config, gpu), **offers}, self._listener.getsockname()[1])

        met = host.meet(config.dist_timeout, check, agreed)
        self.links += [met.work[rank] for rank in range(1, config.tp_size)]
        self._mesh, self._nodes = mesh_ranks(config, 0, met), met.nodes
        if gpu is not None:
            self._mesh.gpus, self._mesh.listener = gpus_met(gpu, 0, met, self._listener), self._listener
        return self._mesh

    def kill(self) -> None:
        """Kills all ranks at once. Those on other machines end when their connections do."""
        for process in self.processes.values():
            process.kill()
        if self._mesh is not None:
            for link in self.links:
                cut(link)
            for node in self._nodes:
                cut(node)

    def close(self, last: Ended | None = None) -> None:
        """last: None if the ranks of other machines should join again."""
        if self._mesh is not None:
            if last is not None:
                send_last(self.links, last, HEARD_SECONDS)
            for link in self.links:
                link.close()
            self._mesh.close()
            for node in self._nodes:
                node.close()
        for process in self.processes.values():
            process.close()
        if self._ray is not None:
            self._ray.close()
        if self._memory is not None:
            self._memory.close()
        if self._listener is not None:  # if nothing has taken it over
            self._listener.close()


def check_processes(processes: Mapping[int, RankProcess]) -> None:
    """To be called while waiting for ranks. Raises PeerGone if a process has ended or is
    stopped."""
    for rank, process in processes.items():
        if process.ended:
            raise PeerGone(f"rank {rank} has ended ({process.how_it_ended()}) while others were waited for")
        if process.watch.stopped:
            raise PeerGone(f"rank {rank} is stopped while others are waited for")


def start(
    config: EngineConfig,
    memory: Memory | None,
    into: dict[int, RankProcess],
    ep_rank: EPRank | None = None,
    gpus: Sequence[Gpus] | None = None,
) -> None:
    """Starts this machine's ranks, without rank 0, which is the engine's process. If groups are on several
    machines, engines are not ranks, and it starts the ranks of all groups. memory: None if ranks connect over
    the network. gpus: of each rank, if all are on this machine."""
    memories = [] if memory is None else [memory]
    if ep_rank is not None:
        assert ep_rank.memory is not None
        memories.append(ep_rank.memory)
    apart = memory is None and config.groups > 1
    for rank in config.own_ranks if memory is None else range(config.tp_size):
        if rank or apart:
            into[rank] = RankProcess(RANK, memories)
            gpu = None if gpus is None else gpus[rank]
            group, place = divmod(rank, config.tp_size)
            name = line_start(place, group if apart else None)
            with contextlib.suppress(*GONE):  # it has ended already; who waits for it will say how
                into[rank].link.send((config, rank, ep_rank and ep_rank.group, gpu, name))


# From here on, this process is the given rank; config.threads is per rank.


def shared_ranks(
    config: EngineConfig, rank: int, memory: Memory, group: int = 0, gpus: Gpus | None = None
) -> SharedRanks:
    """group: number of this rank's group, if groups share experts."""
    pin_rank(config, group * config.tp_size + rank)
    ranks = SharedRanks(rank, config.tp_size, memory, threads_here(config), most_rows(config))
    ranks.gpus, ranks.among = gpus, (group * config.tp_size + rank, config.world_size)
    return ranks


def mesh_ranks(config: EngineConfig, rank: int, met: Met) -> MeshRanks:
    pin_rank(config, rank)
    return MeshRanks(rank, met.data, met.signs, threads_here(config), most_rows(config))


def pin_rank(config: EngineConfig, rank: int) -> None:
    """Pins this process to the rank's own cores, if it has any. Call it before loading. rank: of all
    groups."""
    if config.numa == "auto":
        pin(rank - config.own_ranks.start, len(config.own_ranks))


def threads_of(config: EngineConfig) -> int:
    """Number of threads of each rank (--threads is per rank)."""
    return config.threads or max(1, usable_cores() // len(config.own_ranks))


def threads_here(config: EngineConfig) -> int:
    """Number of threads of all ranks of this machine."""
    return len(config.own_ranks) * threads_of(config)


def most_rows(config: EngineConfig) -> int:
    each = 1 + MAX_DRAFTS + draft_window(config.page_size)  # rows of a request in a step, without prompts
    return config.chunked_prefill_size + config.max_running_requests * each
