"""How rank processes end, for who starts them, and what they say."""

from __future__ import annotations

import logging
import traceback

from nextn.config import EngineConfig
from nextn.distributed.rendezvous import Refused

log = logging.getLogger("nextn.engine")

# The engine has ended and nobody is to come again; it cannot be, for a reason that was said; something went
# wrong here; another rank is gone, so this one is to be started again.
LET_GO, REFUSED, FAILED, LOST = 0, 3, 1, 4


def says_why(config: EngineConfig, rank: int) -> bool:
    """Does this rank say why the engine cannot be? On other machines than node 0, one of them does."""
    return config.node_rank > 0 and rank == config.own_ranks.start


def not_met(config: EngineConfig, error: Exception) -> int:
    """The exit code of a rank that does not find the others. It says why, unless who refused it is on this
    machine and does."""
    if config.node_rank or not isinstance(error, Refused):
        log.critical("%s", error)
    return REFUSED


def load_error(config: EngineConfig, rank: int, error: Exception) -> Exception:
    """What a rank that cannot make its runner sends to its engine, and says where nobody else does."""
    if not isinstance(error, (ValueError, OSError)):  # no mistake in the options or files
        traceback.print_exc()
        return RuntimeError(f"rank {rank}: {error!r}")
    if says_why(config, rank):
        log.critical("%s", error)
    return ValueError(str(error))
