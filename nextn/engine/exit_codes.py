"""Exit codes of rank processes, and which process logs an error."""

from __future__ import annotations

import logging
import traceback

from nextn.config import EngineConfig
from nextn.distributed.rendezvous import Refused

log = logging.getLogger("nextn.engine")

# LET_GO: the engine has ended, do not start the rank again. REFUSED: it cannot start, the reason was logged.
# FAILED: an error in this rank. LOST: another rank has ended, start this one again.
LET_GO, REFUSED, FAILED, LOST = 0, 3, 1, 4


def says_why(config: EngineConfig, rank: int) -> bool:
    """Whether this rank logs why the engine cannot start. On machines other than node 0, one rank does."""
    return config.node_rank > 0 and rank == config.own_ranks.start


def not_met(config: EngineConfig, error: Exception) -> int:
    """The exit code of a rank that could not connect to the others. Logs the reason, unless the process that
    refused it is on this machine and logs it."""
    if config.node_rank or not isinstance(error, Refused):
        log.critical("%s", error)
    return REFUSED


def load_error(config: EngineConfig, rank: int, error: Exception) -> Exception:
    """The error that a rank sends to its engine if it cannot make its runner. Also logged if no other rank of
    this machine does."""
    if not isinstance(error, (ValueError, OSError)):  # no mistake in the options or files
        traceback.print_exc()
        return RuntimeError(f"rank {rank}: {error!r}")
    if says_why(config, rank):
        log.critical("%s", error)
    return ValueError(str(error))
