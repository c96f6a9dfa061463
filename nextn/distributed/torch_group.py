"""Ranks that are processes, one for each device, by torch.distributed.

    group = TorchGroup(rank, 2, "tcp://127.0.0.1:29500", "nccl")

nccl: one GPU per rank. Data goes from GPU to GPU on the current stream. The host does not wait, and a CUDA
graph can contain the collective. gloo: any devices, also several ranks on one GPU. Data goes through the
host's memory, and the host waits.

A collective only transfers bytes and adds nothing, so neither the backend nor its algorithm affects a value.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from datetime import timedelta
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from nextn.distributed.group import PeerGone

BACKENDS = ("gloo", "nccl")
# Torch 2.13 has renamed it. A torch without torch.distributed has neither.
_all_gather = getattr(dist, "all_gather_single", None) or getattr(dist, "all_gather_into_tensor", None)


class TorchGroup:
    """torch.distributed's default group, one per process, and its parts. With nccl, the process's device must
    be set before."""

    _handle: dist.ProcessGroup | None = None  # None: torch's default group

    def __init__(
        self,
        rank: int,
        size: int,
        init: str | Any,
        backend: str = "gloo",
        timeout: float = 60.0,
    ) -> None:
        """init: tcp://host:port, where rank 0 listens, or a store that all share. timeout: seconds that a
        rank waits for the others, here and in `gather`.

        Raises PeerGone if not all ranks connect in this time, ValueError for a backend that does not exist or
        cannot be used here.
        """
        assert 0 <= rank < size
        if backend not in BACKENDS:
            raise ValueError(f"no backend {backend!r} for ranks; there are: {', '.join(BACKENDS)}")
        if backend == "nccl" and not (torch.cuda.is_available() and dist.is_nccl_available()):
            raise ValueError("backend nccl: torch finds no CUDA device, or was built without NCCL; use gloo")
        self.rank, self.size, self.backend, self.timeout = rank, size, backend, timeout
        device = torch.device("cuda", torch.cuda.current_device()) if backend == "nccl" else None
        try:
            dist.init_process_group(
                backend, init_method=init if isinstance(init, str) else None,
                store=None if isinstance(init, str) else init, rank=rank, world_size=size,
                timeout=timedelta(seconds=timeout), device_id=device,
            )  # fmt: skip
        except RuntimeError as e:  # torch's own errors are of this kind
            raise self._gone(f"not all ranks met at {init}", e) from e

    def part(self, parts: Sequence[Sequence[int]]) -> TorchGroup:
        """Makes a group of each part, and returns the one that contains this rank. All ranks must call it
        with the same parts, in which every rank occurs once."""
        limit = timedelta(seconds=self.timeout)
        try:
            handles = [dist.new_group(list(ranks), timeout=limit, backend=self.backend) for ranks in parts]
        except RuntimeError as e:
            raise self._gone("another rank has ended, or does not answer", e) from e
        at = next(i for i, ranks in enumerate(parts) if self.rank in ranks)
        found = copy(self)
        found.rank, found.size, found._handle = parts[at].index(self.rank), len(parts[at]), handles[at]
        return found

    def gather(self, whole: Tensor, bounds: Sequence[int]) -> None:
        """See `Group`. With nccl, nothing is raised here if a rank has ended: torch's watchdog ends this
        process after `timeout`."""
        assert whole.is_contiguous()
        if not whole.numel():
            return
        # As bytes, which every backend supports. Parts are padded to the widest: all ranks send the same
        # size.
        raw = whole.view(torch.uint8)
        widths = [(end - begin) * whole.element_size() for begin, end in pairwise(bounds)]
        parts = raw.split(widths, dim=1)
        sent = raw.new_empty(len(raw), max(widths))
        sent[:, : widths[self.rank]] = parts[self.rank]
        found = self._all(sent)
        torch.cat([part[:, :width] for part, width in zip(found, widths, strict=True)], dim=1, out=raw)

    def exchange(self, sent: Tensor, counts: Sequence[int], theirs: Sequence[int]) -> Tensor:
        """All-to-all: sends the first counts[0] elements of sent [n] to rank 0, and so on. Returns theirs[0]
        elements from rank 0, and so on."""
        device = sent.device
        if self.backend == "gloo":
            sent = sent.cpu()
        found = sent.new_empty(sum(theirs))
        try:
            dist.all_to_all_single(found, sent, list(theirs), list(counts), group=self._handle)
        except RuntimeError as e:
            raise self._gone("another rank has ended, or does not answer", e) from e
        return found.to(device)

    def close(self) -> None:
        """Leaves the group. With gloo, the others raise PeerGone in their next gather."""
        if dist.is_initialized():
            dist.destroy_process_group()

    def _all(self, sent: Tensor) -> Tensor:
        """[rows, n] of every rank, of the same shape -> [ranks, rows, n]."""
        device = sent.device
        if self.backend == "gloo":
            sent = sent.cpu()
        found = sent.new_empty(self.size, *sent.shape)
        assert _all_gather is not None
        try:
            _all_gather(found.flatten(0, 1), sent, group=self._handle)
        except RuntimeError as e:
            raise self._gone("another rank has ended, or does not answer", e) from e
        return found.to(device)

    def _gone(self, what: str, error: RuntimeError) -> PeerGone:
        """The error, with the rank that has ended, if the backend reports it."""
        reason = str(error).partition("\n")[0]
        return PeerGone(f"rank {self.rank} of {self.size}: {what} (within {self.timeout:g} s): {reason}")
