"""Arrays that every rank shows to all others that share experts with it."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from nextn.distributed.step_world import MovesBytes


class Exchange:
    """most: bytes of a rank's array, at most. To be made after a step, by all ranks."""

    def __init__(self, world: MovesBytes, most: int) -> None:
        self._world = world
        self._board = world.area(world.share.size * most)

    def of_all(self, own: NDArray[Any]) -> NDArray[Any]:
        """[ranks, ...]: what each gave; all give an array of the same shape and type. Raises PeerGone."""
        share = self._world.share
        board = self._board[: share.size * own.nbytes].view(own.dtype).reshape(share.size, *own.shape)
        board[share.rank] = own
        self._world.gathered(board)
        found: NDArray[Any] = board.copy()
        self._world.meet()  # from here on it may be written again
        return found
