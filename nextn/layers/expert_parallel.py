"""Routed experts that all ranks of a world share (`nextn.distributed.world`), with the bits of one device.

    1. A group's ranks route all its rows. Each of its A ranks owns some rows: bounds[a]:bounds[a + 1].
    2. The owner sends a row once to every slice of every shard that has some of the row's experts. It also
       sends K numbers with the row: the expert of the shard that computes choice k, or -1.
    3. The slices of a shard get the same rows, and compute them with tensor parallelism: inner columns are
       gathered, and each slice returns its hidden columns of every result.
    4. The owner concatenates the columns, and sums a row's K results in the order of its choices.

A result does not depend on other rows, and only the owner adds results. So a sum has the same terms and order
as on one device. Rows and results have the same dtypes as on one device. Rows that experts read rounded to
e4m3 are sent in e4m3.
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
    """A target's MoE layer. index: of the decoder layer. Each group computes its shared experts itself."""

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
        self._empty = partial(sharing.empty, 0)  # a tensor with 0 rows and the given number of columns
        self._elsewhere = set(range(cfg.n_routed_experts)) - set(self.held)
        # Number of the group's rows that chose each expert. All ranks have the same rows: the first counts.
        self.counts = torch.zeros(cfg.n_routed_experts, dtype=torch.int64, device=sharing.device)
        # The columns that each slice returns, even if every slice computes all columns.
        self.returned = Split.even(self.world.peers, cfg.hidden_size)

    def targets(self, prefix: str) -> dict[str, Weight]:
        """Same as `MLP.targets`. Tensors of experts in other shards have 0 rows."""
        found, names = super().targets(prefix), self.cfg.names
        up, down = (self._empty(weight.shape[2]) for weight in (self.gate_up, self.down))
        for e in self._elsewhere:
            at = prefix + names.expert_at(e)
            found |= {at + names.gate: up, at + names.up: up, at + names.down: down}
        return found

    def rows(self) -> dict[str, range]:
        """Checkpoint name -> the rows that this rank loads, for the tensors of routed experts."""
        names = self.cfg.names
        found: dict[str, range] = {}
        splits = {names.gate: self.inner.own, names.up: self.inner.own, names.down: self.hidden.own}
        for e in range(self.cfg.n_routed_experts):
            at = self._prefix + names.expert_at(e)
            found |= {at + name: range(0) if e in self._elsewhere else own for name, own in splits.items()}
        return found

    def forward(self, x: Tensor, batch: Batch) -> tuple[Tensor, ...]:
        """Same as `MoE.forward`. All ranks of the world call it, or `idle`, at the same time."""
        ids, weights = self.route(x)
        if self.group.rank == 0:
            chosen = ids[: batch.rows].flatten().long()
            self.counts.scatter_add_(0, chosen, torch.ones_like(chosen))
        rows, rank, hidden = bounds(batch.rows, self.group.size, 1), self.group.rank, x.shape[1]
        begin, end = rows[rank], rows[rank + 1]
        results = self._dispatch(x[begin:end], ids[begin:end], begin)
        routed = x.new_zeros(x.shape, dtype=torch.float32)
        if begin < end:
            routed[begin:end] = self.ops.combine(results, weights[begin:end])
        self.group.gather(routed[: batch.rows].view(1, -1), [row * hidden for row in rows])
        shared = () if self.shared is None else self.shared.forward(x, batch)
        return *shared, routed

    def idle(self) -> None:
        """Takes part in the `forward` of other groups, without own rows."""
        x = self._empty(self.cfg.hidden_size)
        self._dispatch(x, x.new_empty(0, self.cfg.num_experts_per_tok, dtype=torch.int64), 0)

    def _dispatch(self, x: Tensor, ids: Tensor, first: int) -> Tensor:
        """Sends rows to their experts: x [n, C], ids [n, K], of the group's rows from `first` on -> the
        experts' results [n, K, C]."""
        world, (n, k) = self.world, ids.shape
        shard, place = self.replicas.choose(ids, first)
        here = shard == torch.arange(world.shards, device=ids.device)[:, None, None]  # [shards, n, K]
        goes = here.any(2)
        sizes = self._sizes(torch.stack((goes.sum(1), here.sum((1, 2))), dim=1))
        rows, choices = zip(*sizes[: world.shards], strict=True)  # numbers that go to each shard
        their_rows, their_choices = zip(*sizes[world.shards :], strict=True)  # that come from each rank
        at = _true_at(goes, sum(rows))
        sources = torch.arange(n, device=ids.device).repeat(world.shards)[at]
        chosen = place.where(here, -1).flatten(0, 1)[at]
        packed = self._packed(x[sources], chosen).split(rows)
        sent = [part for part in packed for _ in range(world.slices)]
        results = self._compute_received(world.exchange(sent, their_rows), their_choices)
        due = [count * len(columns) for count in choices for columns in self.returned.parts]
        returned = iter(world.exchange(results, due))
        found = []
        for count in choices:
            parts = [next(returned).view(count, len(columns)) for columns in self.returned.parts]
            found.append(torch.cat(parts, dim=1))
        by_shard = shard.flatten().argsort(stable=True)
        whole = found[0].new_empty(n * k, self.returned.n)
        return whole.index_copy_(0, by_shard, torch.cat(found)).view(n, k, self.returned.n)

    def _sizes(self, own: Tensor) -> list[tuple[int, int]]:
        """own [shards, 2]: numbers of rows and choices that go to each shard -> these numbers, then the
        numbers that come from each rank of the world. The host waits for the device here, once per layer."""
        by_rank = own.repeat_interleave(self.world.slices, dim=0).split(1)
        theirs = self.world.exchange(by_rank, [1] * self.world.size)
        return [(rows, choices) for rows, choices in torch.cat((own, *theirs)).tolist()]

    def _compute_received(self, packed: Sequence[Tensor], choices: Sequence[int]) -> list[Tensor]:
        """The rows from each rank of the world, and their numbers of choices -> for each rank, the results of
        its choices, row by row, in one array. A result has the columns of this slice."""
        x, ids = self._unpacked(torch.cat(list(packed)))
        # One more row, without choices, so that the kernels always have a row.
        x, ids = F.pad(x, (0, 0, 0, 1)), F.pad(ids, (0, 0, 0, 1), value=-1)
        begin, end = (at - self.hidden.begin for at in (self.returned.begin, self.returned.end))
        results = self.results(x, ids).flatten(0, 1)[_true_at(ids >= 0, sum(choices)), begin:end]
        return list(results.flatten().split([count * (end - begin) for count in choices]))

    def _packed(self, x: Tensor, ids: Tensor) -> Tensor:
        """x [n, C], ids [n, K] -> one array [n, bytes] uint8."""
        rows = pack(x) if self.fp8_rows else x.view(torch.uint8)
        return torch.cat((ids.to(torch.int32).view(torch.uint8), rows), dim=1)

    def _unpacked(self, packed: Tensor) -> tuple[Tensor, Tensor]:
        # Copies, whose memory is aligned for any dtype. clone copies even a single row, which is contiguous.
        at, dtype = 4 * self.cfg.num_experts_per_tok, self._empty(0).dtype
        ids, x = (t.clone(memory_format=torch.contiguous_format) for t in packed.tensor_split([at], dim=1))
        found = unpack(x, self.cfg.hidden_size, dtype) if self.fp8_rows else x.view(dtype)
        return found, ids.view(torch.int32).long()


def _true_at(mask: Tensor, count: int) -> Tensor:
    """Indices of the True values of the flattened mask, in order. count: their number. Unlike with `nonzero`,
    the host does not wait for the device."""
    return mask.flatten().to(torch.uint8).argsort(descending=True, stable=True)[:count]
