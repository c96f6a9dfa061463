"""How rank processes end, for who starts them."""

from __future__ import annotations

from nextn.config import EngineConfig

# The engine has ended and nobody is to come again; it cannot be, for a reason that was said; something went
# wrong here; another rank is gone, so this one is to be started again.
LET_GO, REFUSED, FAILED, LOST = 0, 3, 1, 4


def says_why(config: EngineConfig, rank: int) -> bool:
    """Does this rank say why the engine cannot be? On other machines than node 0, one of them does."""
    return config.node_rank > 0 and rank == config.own_ranks.start
