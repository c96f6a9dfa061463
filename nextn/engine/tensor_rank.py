"""Every rank but 0 of an engine, as a process. `nextn.engine.gang` starts those of rank 0's machine, and
`nextn.engine.node` those of another."""

from __future__ import annotations

import dataclasses
import logging
import os
import signal
import sys
import traceback
from multiprocessing.connection import Connection

from nextn.config import EngineConfig
from nextn.distributed import rendezvous
from nextn.distributed.group import PeerGone
from nextn.distributed.life import StopWatch
from nextn.distributed.process import opened
from nextn.distributed.pulse import LOADING, SILENT, Pulse
from nextn.distributed.ranks import Ranks
from nextn.distributed.wire import GONE, Ended, Loaded, receive, send
from nextn.engine import group_rank, rank_log
from nextn.engine.ep_rank import EPRank
from nextn.engine.exit_codes import FAILED, LET_GO, LOST, REFUSED, not_met, says_why
from nextn.engine.facts import facts
from nextn.engine.gang import mesh_ranks, shared_ranks, threads_of
from nextn.engine.gpu_ranks import gpus_met, offer, own_gpu
from nextn.engine.rank import runner_or_none
from nextn.engine.state_messages import apply
from nextn.engine.tensor_parallel import digest
from nextn.scheduler.plan import Plan

log = logging.getLogger("nextn.engine")


def main(arguments: list[str]) -> int:
    """arguments: for `nextn.distributed.process.opened`. Returns the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group
    try:
        leash, memories, parent = opened(arguments)
        config, rank, group, gpus, line_start = leash.recv()
    except GONE:
        return LOST
    rank_log.configure(line_start)
    if not memories and config.groups > 1:
        return group_rank.join_and_run(config, rank, parent if config.node_rank == 0 else None)
    if not memories:
        return join_and_run(config, rank, parent)
    ep_rank = None if group is None else EPRank(group, rank, memories[1])
    return run(config, leash, shared_ranks(config, rank, memories[0], group or 0, gpus), parent, ep_rank)


def join_and_run(config: EngineConfig, rank: int, parent: int | None = None) -> int:
    """Connects to rank 0 over the network, and runs until it ends. Returns the exit code. parent: see
    `run`."""
    config = dataclasses.replace(config, threads=threads_of(config))
    gpu = own_gpu(config, rank)
    try:
        met = rendezvous.join(
            config.rank_0, rank, config.tp_size, facts(config), config.dist_timeout, offer=offer(config, gpu)
        )
    except (rendezvous.Refused, TimeoutError, ValueError) as e:
        return not_met(config, e)
    except OSError as e:
        log.warning("rank 0 has ended while others were waited for (%s)", e)
        return LOST
    ranks = mesh_ranks(config, rank, met)
    ranks.gpus = None if gpu is None else gpus_met(gpu, rank, met)
    return run(config, met.work[0], ranks, parent if config.node_rank == 0 else None)


def run(
    config: EngineConfig, link: Connection, ranks: Ranks, parent: int | None, ep_rank: EPRank | None = None
) -> int:
    """Runs rank 0's plans until it ends. parent: the process of rank 0, if this one may end it, else None.
    ep_rank: if experts are shared on one machine."""

    def lost(rank: int, what: str) -> None:
        log.critical("rank %d %s; this rank ends", rank, what)
        if parent is not None and os.getppid() == parent:
            os.kill(parent, signal.SIGKILL)  # for its supervisor to start another
        os._exit(LOST)

    pulse = Pulse(ranks, lost, LOADING, {} if parent is None else {0: StopWatch(parent)})
    try:
        runner = runner_or_none(config, ranks.rank, link, ranks, ep_rank)
        if runner is None:
            return REFUSED
        send(link, runner.info)
        while True:
            message = receive(link)
            if apply(runner, message):
                continue
            if isinstance(message, Loaded):
                pulse.expect(SILENT)
            elif isinstance(message, Plan):
                result = runner.launch(message).result()
                if config.check_integrity:
                    send(link, digest(result))
            else:
                return _last(message, says_why(config, ranks.rank))
    except (*GONE, PeerGone):
        return LOST  # rank 0 logs the reason
    except Exception:
        log.critical("rank %d failed and ends:\n%s", ranks.rank, traceback.format_exc())
        return FAILED
    finally:
        pulse.stop()


def _last(message: Ended, says: bool) -> int:
    if message.error and says:
        log.critical("%s", message.error)
    return REFUSED if message.error else LET_GO


if __name__ == "__main__":
    code = main(sys.argv[1:])
    # Exits at once: the process that started it waits only a moment, and NCCL may wait forever for graphs
    # with its collectives, and for rank 0.
    sys.stderr.flush()
    os._exit(code)
