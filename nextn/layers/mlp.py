"""The two feed-forward blocks: dense SwiGLU, and DeepSeek-V3's mixture of experts.

Shapes: T rows, C hidden, I inner width, E experts.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nextn.families.config import ModelConfig
from nextn.layers.batch import Batch
from nextn.ops.base import Ops


class MLP:
    def __init__(self, hidden: int, inner: int, ops: Ops, dtype: torch.dtype, device: torch.device) -> None:
        self.ops, self.inner = ops, inner
        self.gate_up = torch.empty(2 * inner, hidden, dtype=dtype, device=device)
        self.down = torch.empty(hidden, inner, dtype=dtype, device=device)

    def targets(self, prefix: str) -> dict[str, Tensor]:
        return {
            f"{prefix}gate_proj.weight": self.gate_up[: self.inner],
            f"{prefix}up_proj.weight": self.gate_up[self.inner :],
            f"{prefix}down_proj.weight": self.down,
        }

    def forward(self, x: Tensor, batch: Batch) -> tuple[Tensor, ...]:
        """x [T, C] -> what the residual stream grows by: some [T, C] f32, to be added in their order."""
        return (self.ops.swiglu_mlp(x, self.gate_up, self.down),)


class MoE:
    """Routed experts plus the shared ones (arXiv 2412.19437, 2.1.2)."""

    def __init__(self, cfg: ModelConfig, ops: Ops, dtype: torch.dtype, device: torch.device) -> None:
        self.cfg, self.ops = cfg, ops
        experts, inner, hidden = cfg.n_routed_experts, cfg.moe_intermediate_size, cfg.hidden_size
        self.gate = torch.empty(experts, hidden, dtype=torch.float32, device=device)
        self.bias = torch.empty(experts, dtype=torch.float32, device=device)
        self.gate_up = torch.empty(experts, 2 * inner, hidden, dtype=dtype, device=device)
        self.down = torch.empty(experts, hidden, inner, dtype=dtype, device=device)
        self.shared = (
            MLP(hidden, inner * cfg.n_shared_experts, ops, dtype, device) if cfg.n_shared_experts else None
        )

    def targets(self, prefix: str) -> dict[str, Tensor]:
        inner = self.cfg.moe_intermediate_size
        found = {f"{prefix}gate.weight": self.gate, f"{prefix}gate.e_score_correction_bias": self.bias}
        for e in range(self.cfg.n_routed_experts):
            found[f"{prefix}experts.{e}.gate_proj.weight"] = self.gate_up[e, :inner]
            found[f"{prefix}experts.{e}.up_proj.weight"] = self.gate_up[e, inner:]
            found[f"{prefix}experts.{e}.down_proj.weight"] = self.down[e]
        if self.shared is not None:
            found |= self.shared.targets(f"{prefix}shared_experts.")
        return found

    def forward(self, x: Tensor, batch: Batch) -> tuple[Tensor, ...]:
        """As `MLP.forward`: of the shared experts, if there are some, and of the routed ones."""
        cfg, ops = self.cfg, self.ops
        ids, weights = ops.route(
            x,
            self.gate,
            self.bias,
            cfg.n_group,
            cfg.topk_group,
            cfg.num_experts_per_tok,
            cfg.norm_topk_prob,
            cfg.routed_scaling_factor,
        )
        plan = ops.dispatch(ids[: batch.rows], cfg.n_routed_experts)
        routed = ops.combine(ops.experts(x, plan, self.gate_up, self.down), weights)
        return (routed,) if self.shared is None else (*self.shared.forward(x, batch), routed)
