"""Routed experts that all ranks of a world share (`nextn.distributed.world`), with the bits of one device.

    1. A group's ranks route all its rows. Each of its A ranks owns some of them: row bounds[a]:bounds[a + 1].
    2. The owner sends a row to every shard that has some of its experts, to each slice of that, once; with it
       K numbers: which expert of the shard computes choice k, or -1.
    3. The slices of a shard get the same rows, and compute them as tensor parallelism does: inner columns are
       gathered, and each returns its hidden columns of every result.
    4. The owner puts them together, and adds up a row's K results in the order of its choices.

A result does not depend on the rows beside it, and nothing is added on the way: so a sum has the terms and
the order that one device gives it. Rows and results keep the dtypes that they have on one device; rows that
experts read rounded to e4m3 are sent as such.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from nextn.distributed.group import bounds
from nextn.distributed.split import Split
from nextn.layers.batch import Batch
from nextn.layers.mlp import MoE
from nextn.layers.sharing import Sharing
from nextn.ops.fp8 import Weight
from nextn.ops.fp8_rows import pack, unpack


class ParallelMoE(MoE):
    """A target's MoE layer. index: of the decoder layer. Shared experts are the group's own."""

    def __init__(self, sharing: Sharing, index: int) -> None:
        cfg, experts = sharing.cfg, sharing.experts
        assert experts is not None
        self.world, self.group = experts.world, sharing.group
        routed = [i for i in range(cfg.num_hidden_layers) if cfg.is_moe(i)]
        self.replicas = experts.replicas(
            routed.index(index), len(routed), cfg.n_routed_experts, sharing.device
        )
        super().__init__(sharing, self.replicas.held[self.world.shard], sharing.slices)
        self._prefix = cfg.names.at(index)
        self._empty = partial(sharing.empty, 0)  # no rows, of so many columns
        self._elsewhere = set(range(cfg.n_routed_experts)) - set(self.held)
        # The columns that each slice returns, also where every slice computes all of them.
        self.returned = Split.even(self.world.peers, cfg.hidden_size)

    def targets(self, prefix: str) -> dict[str, Weight]:
        """As `MLP.targets`. Tensors of experts that other shards hold have no rows here."""
        found, names = super().targets(prefix), self.cfg.names
        up, down = (self._empty(weight.shape[2]) for weight in (self.gate_up, self.down))
        for e in self._elsewhere:
            at = prefix + names.expert_at(e)
            found |= {at + names.gate: up, at + names.up: up, at + names.down: down}
        return found

    def rows(self) -> dict[str, range]:
        """Checkpoint name -> which rows its target takes, of routed experts."""
        names = self.cfg.names
        found: dict[str, range] = {}
        splits = {names.gate: self.inner.own, names.up: self.inner.own, names.down: self.hidden.own}
        for e in range(self.cfg.n_routed_experts):
            at = self._prefix + names.expert_at(e)
            found |= {at + name: range(0) if e in self._elsewhere else own for name, own in splits.items()}
        return found

    def forward(self, x: Tensor, batch: Batch) -> tuple[Tensor, ...]:
        """As `MoE.forward`. All ranks of the world are in it, or in `idle`."""
        ids, weights = self.route(x)
        rows, rank, hidden = bounds(batch.rows, self.group.size, 1), self.group.rank, x.shape[1]
        begin, end = rows[rank], rows[rank + 1]
        results = self._spread(x[begin:end], ids[begin:end], begin)
        routed = x.new_zeros(x.shape, dtype=torch.float32)
        if begin < end:
            routed[begin:end] = self.ops.combine(results, weights[begin:end])
        self.group.gather(routed[: batch.rows].view(1, -1), [row * hidden for row in rows])
        shared = () if self.shared is None else self.shared.forward(x, batch)
        return *shared, routed

    def idle(self) -> None:
        """Takes part in the `forward` of other groups without rows of its own."""
        x = self._empty(self.cfg.hidden_size)
        self._spread(x, x.new_empty(0, self.cfg.num_experts_per_tok, dtype=torch.int64), 0)

    def _spread(self, x: Tensor, ids: Tensor, first: int) -> Tensor:
        """Of rows `first` and on of the group: x [n, C], ids [n, K] -> their experts' results [n, K, C]."""
        shard, place = self.replicas.choose(ids, first)
        sent, chosen = [], [shard == s for s in range(self.world.shards)]
        for here in chosen:
            rows = here.any(1)
            sent += [self._packed(x[rows], place.where(here, -1)[rows])] * self.world.slices
        returned = iter(self.world.exchange(self._serve(self.world.exchange(sent))))
        found = []
        for here in chosen:
            count = int(here.sum())
            parts = [next(returned).view(count, len(own)) for own in self.returned.parts]
            found.append(torch.cat(parts, dim=1))
        results = found[0].new_empty(*ids.shape, self.returned.n)
        for here, part in zip(chosen, found, strict=True):
            results[here] = part
        return results

    def _serve(self, packed: Sequence[Tensor]) -> list[Tensor]:
        """What the ranks of the world have sent -> for each the results of its choices, row by row, as one
        array: of each this slice's columns."""
        counts = [*map(len, packed), 1]
        x, ids = self._unpacked(torch.cat(list(packed)))
        # A row without choices besides, so that the kernels always have one.
        x, ids = F.pad(x, (0, 0, 0, 1)), F.pad(ids, (0, 0, 0, 1), value=-1)
        begin, end = (at - self.hidden.begin for at in (self.returned.begin, self.returned.end))
        results = self.results(x, ids)[..., begin:end]
        both = zip(results.split(counts), ids.split(counts), strict=True)
        return [found[chosen >= 0].flatten() for found, chosen in both][:-1]

    def _packed(self, x: Tensor, ids: Tensor) -> Tensor:
        """x [n, C], ids [n, K] -> [n, bytes]."""
        rows = pack(x) if self.fp8_rows else x.view(torch.uint8)
        return torch.cat((ids.to(torch.int32).view(torch.uint8), rows), dim=1)

    def _unpacked(self, packed: Tensor) -> tuple[Tensor, Tensor]:
        # Copies, which begin and end where any dtype can: also of one row, whose slice counts as contiguous.
        at, dtype = 4 * self.cfg.num_experts_per_tok, self._empty(0).dtype
        ids, x = (t.clone(memory_format=torch.contiguous_format) for t in packed.tensor_split([at], dim=1))
        found = unpack(x, self.cfg.hidden_size, dtype) if self.fp8_rows else x.view(dtype)
        return found, ids.view(torch.int32).long()
