"""A rank's connection to the other ranks that compute every step with it."""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from nextn.distributed.between_gpus import BetweenGpus
from nextn.distributed.gpus import Gpus
from nextn.distributed.group import Group, PeerGone
from nextn.ops.cpu import interface as kernels


class Ranks(ABC):
    """`nextn.distributed.shared`: all on one machine. `nextn.distributed.mesh`: on several. A `Group` for the
    torch model on CPUs. most_rows: of a step. gpus: set if the model is on GPUs. listener: rank 0's, where
    they connect."""

    gpus: Gpus | None = None
    among: tuple[int, int] | None = None  # (rank, size) if several groups share experts
    listener: socket.socket | None = None
    _between: BetweenGpus | None = None

    def __init__(self, rank: int, size: int, most_rows: int) -> None:
        self.rank, self.size, self.most_rows = rank, size, most_rows
        self.reason = ""  # why no step can run any more
        self._struct: kernels.Ranks | None = None
        self._seconds = 0.0
        self.leaving: list[Callable[[], None]] = []  # called before it leaves the group of GPUs

    @abstractmethod
    def shared_by(self, model: kernels.Model, layers: int) -> Any:
        """The information about the ranks for the native engine of this model."""

    @abstractmethod
    def gather(self, whole: Tensor, bounds: Sequence[int]) -> None:
        """See `nextn.distributed.group.Group`: for the torch model, whose arrays are its own."""

    @abstractmethod
    def beat(self) -> None:
        """Shows the others that this rank lives."""

    @abstractmethod
    def beats(self) -> Mapping[int, int | None]:
        """How often each rank that this one watches has beaten; None: it has ended."""

    def join_gpus(self) -> None:
        """Takes this rank's GPU, and waits for the others to do so. Raises PeerGone."""
        if self.gpus is not None:
            rank, size = self.among or (self.rank, self.size)
            self._between = BetweenGpus(self.gpus, rank, size, self.listener, self.check)

    @property
    def group(self) -> Group:
        """The group that gathers the torch model's arrays. If ranks of several groups are connected: all of
        them."""
        return self if self._between is None else self._between.group

    @property
    def by_nccl(self) -> bool:
        return self.gpus is not None and self.gpus.backend == "nccl"

    def least(self, number: int) -> int:
        """On GPUs: waits until all ranks have called this, and returns the minimum. Raises PeerGone."""
        assert self._between is not None
        return min(self._between.all_say(number))

    def leave_gpus(self) -> None:
        """Leaves the group of GPUs, so that this process can be a rank of another engine."""
        if self._between is not None:
            for each in self.leaving:
                each()
            self._between.group.close()
            self._between = None

    def check(self) -> None:
        """Raises PeerGone if a rank has ended."""
        if self.reason:
            raise self.gone()

    def give_up(self, reason: str) -> None:
        """A rank has ended: ends all waits of this process, except those for NCCL."""
        self.reason = self.reason or reason
        self._wake()

    @abstractmethod
    def _wake(self) -> None:
        """Makes every present and later wait for another rank raise PeerGone."""

    def gone(self) -> PeerGone:
        return PeerGone(self.reason or "another rank of this engine has ended")

    @property
    def waited(self) -> float:
        """Total seconds that this rank has waited for the others."""
        return self._seconds + (0.0 if self._struct is None else float(self._struct.waited) / 1e9)
