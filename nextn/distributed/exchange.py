"""An all-gather of arrays between all ranks that share experts."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from nextn.distributed.step_world import MovesBytes


class Exchange:
    """most: maximum bytes of a rank's array. All ranks must make it at the same time, after a step."""

    def __init__(self, world: MovesBytes, most: int) -> None:
        self._world = world
        self._board = world.area(world.share.size * most)

    def of_all(self, own: NDArray[Any]) -> NDArray[Any]:
        """[ranks, ...]: the arrays of all ranks, of the same shape and type. Raises PeerGone."""
        share = self._world.share
        board = self._board[: share.size * own.nbytes].view(own.dtype).reshape(share.size, *own.shape)
        board[share.rank] = own
        self._world.gathered(board)
        found: NDArray[Any] = board.copy()
        self._world.meet()  # after this, the area may be written again
        return found
