"""The two feed-forward blocks: dense SwiGLU, and DeepSeek-V3's mixture of experts.

Shapes: T rows, C hidden, I inner width, E experts. With several ranks, each has some of the inner
columns of every `gate_up` and some of the hidden columns of every `down`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nextn.families.config import ModelConfig
from nextn.layers.batch import Batch
from nextn.layers.sharing import Sharing
from nextn.ops.base import Addend, Mixture, Routing
from nextn.ops.fp8 import Weight


class MLP:
    """block: its name in a checkpoint, after the decoder layer's name."""

    def __init__(self, sharing: Sharing, block: str, inner: int) -> None:
        self.cfg, self.ops, self.block = sharing.cfg, sharing.ops, block
        self.hidden, self.inner = sharing.hidden(), sharing.inner(inner)
        self.gate_up = sharing.matrix(2 * len(self.inner.own), self.cfg.hidden_size)
        self.down = sharing.matrix(len(self.hidden.own), inner)

    def targets(self, prefix: str) -> dict[str, Weight]:
        """Checkpoint name -> the weight that this tensor fills. prefix: the decoder layer's name."""
        names, at, inner = self.cfg.names, prefix + self.block, len(self.inner.own)
        return {
            at + names.gate: self.gate_up[:inner],
            at + names.up: self.gate_up[inner:],
            at + names.down: self.down,
        }

    def forward(self, x: Tensor, batch: Batch) -> tuple[Tensor, ...]:
        """x [T, C] -> terms to add to the residual stream, in this order, each [T, C] f32."""
        return self.hidden.wholes(self.part(x))

    def part(self, x: Tensor) -> Tensor:
        """The rank's columns of the result of `forward`."""
        return self.ops.swiglu_mlp(x, self.gate_up, self.down, inner=self.inner)


def routing_of(cfg: ModelConfig) -> Routing:
    return Routing(
        cfg.n_group, cfg.topk_group, cfg.num_experts_per_tok, cfg.norm_topk_prob, cfg.routed_scaling_factor,
        cfg.softmax_router,
    )  # fmt: skip


class MoE:
    """Routed and shared experts (arXiv 2412.19437, 2.1.2)."""

    def __init__(
        self, sharing: Sharing, held: Sequence[int] | None = None, slices: Sharing | None = None
    ) -> None:
        """held: the routed experts of this rank, by default all. slices: how ranks split them, if not as in
        `sharing`."""
        self.cfg, self.ops, cfg, empty = sharing.cfg, sharing.ops, sharing.cfg, sharing.empty
        self.fp8_rows = sharing.fp8_rows
        experts, inner, hidden = cfg.n_routed_experts, cfg.moe_intermediate_size, cfg.hidden_size
        slices = sharing if slices is None else slices
        self.held = range(experts) if held is None else held
        self.hidden, self.inner = slices.hidden(), slices.inner(inner)
        self.router = empty(experts, hidden, dtype=torch.float32)
        self.bias, self.routing = empty(experts, dtype=torch.float32), routing_of(cfg)
        if not cfg.names.router_bias:
            self.bias.zero_()
        self.gate_up = sharing.matrix(len(self.held), 2 * len(self.inner.own), hidden)
        self.down = sharing.matrix(len(self.held), len(self.hidden.own), inner)
        shared = inner * cfg.n_shared_experts
        self.shared = MLP(sharing, cfg.names.shared_experts, shared) if shared else None

    def targets(self, prefix: str) -> dict[str, Weight]:
        """As `MLP.targets`."""
        inner, names = len(self.inner.own), self.cfg.names
        found: dict[str, Weight] = {prefix + names.router: self.router}
        if names.router_bias:
            found[prefix + names.router_bias] = self.bias
        for i, e in enumerate(self.held):
            at = prefix + names.expert_at(e)
            found[at + names.gate] = self.gate_up[i, :inner]
            found[at + names.up] = self.gate_up[i, inner:]
            found[at + names.down] = self.down[i]
        if self.shared is not None:
            found |= self.shared.targets(prefix)
        return found

    def forward(self, x: Tensor, batch: Batch) -> tuple[Addend, ...]:
        """As `MLP.forward`: a term for the shared experts, if there are some, and one for the routed ones."""
        (ids, weights), s = self.route(x), self.shared
        taken = self.ops.fp8_rows(x) if self.fp8_rows else x  # the input of the routed experts
        if s is not None and self.hidden.is_whole and self.inner.is_whole and s.inner.is_whole:
            if self.fp8_rows:
                return s.part(x), Mixture(self.results(taken, ids[: batch.rows]), weights)
            runs = self.ops.dispatch(ids[: batch.rows], len(self.held))
            experts = self.gate_up, self.down, s.gate_up, s.down
            results, shared = self.ops.experts_with_shared(x, runs, *experts)
            return shared, Mixture(results, weights)
        routed = self.ops.combine(self.results(taken, ids[: batch.rows]), weights)
        return self.hidden.wholes(*(() if s is None else (s.part(x),)), routed)

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """See `Ops.route`."""
        return self.ops.route(x, self.router, self.bias, self.routing)

    def results(self, x: Tensor, ids: Tensor) -> Tensor:
        """The results of this rank's experts. ids [R, K]: for the first R rows, indices into `held`. Returns
        [R, K, the rank's columns]."""
        runs = self.ops.dispatch(ids, len(self.held))
        return self.ops.experts(x, runs, self.gate_up, self.down, inner=self.inner)
