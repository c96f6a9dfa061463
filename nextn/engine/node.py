"""The ranks of a machine other than rank 0's.

run_node(EngineConfig(tp_size=2, nnodes=2, node_rank=1, dist_init_addr="10.0.0.1:5000"))
"""

from __future__ import annotations

import logging
import time
from multiprocessing import connection
from socket import socket

from nextn.config import EngineConfig
from nextn.distributed.process import RankProcess
from nextn.distributed.rendezvous import attend
from nextn.engine.exit_codes import FAILED, LET_GO, REFUSED
from nextn.engine.gang import start

log = logging.getLogger("nextn.engine")

AGAIN, MOST = 0.5, 30.0  # seconds before ranks that have ended are started again; doubled while they fail
LOOK = 0.2  # seconds between two checks whether a rank is stopped


def run_node(config: EngineConfig) -> int:
    """Starts this machine's ranks, and starts them again after rank 0 has failed, until rank 0 ends normally.
    Returns the exit code: 0 then, or 1 if they cannot start; they have logged the reason."""
    delay = AGAIN
    while True:
        log.info(
            "node %d of %d: %s; node 0 at %s answers HTTP", config.node_rank, config.nnodes,
            ", ".join(f"rank {rank}" for rank in config.own_ranks), config.dist_init_addr,
        )  # fmt: skip
        codes = _run(config)
        if REFUSED in codes:
            return 1
        if LET_GO in codes:  # rank 0 has ended normally, even if one rank was too slow to end by itself
            log.info("the engine has ended")
            return 0
        log.warning("the ranks of this node have ended with others, and are started again")
        delay = min(2 * delay, MOST) if FAILED in codes else AGAIN
        time.sleep(delay)


class _RankEnded(Exception):
    pass


def _run(config: EngineConfig) -> set[int]:
    """Runs the ranks and returns their exit codes. When one of them or rank 0 ends or is stopped, all end."""
    processes: dict[int, RankProcess] = {}

    def check() -> None:
        for rank, process in processes.items():
            if process.watch.stopped:
                log.critical("rank %d is stopped", rank)
                raise _RankEnded
            if process.ended:
                raise _RankEnded

    try:
        start(config, None, processes)
        with attend(config.rank_0, config.node_rank, config.dist_timeout, check) as rank_0:
            ends: list[socket | int] = [rank_0, *(process.sentinel for process in processes.values())]
            while not connection.wait(ends, LOOK):
                check()
    except TimeoutError as e:
        log.critical("%s", e)
        return {REFUSED}
    except (_RankEnded, OSError):
        pass  # the ranks log the reason
    finally:
        for process in processes.values():
            process.close()
    return {process.code() for process in processes.values()}
