"""Inputs for the cases of routed experts: several sets of rows, which the router sends to other experts."""

from __future__ import annotations

from functools import cached_property

import torch

from nextn.bench.dev.micro import op_work
from nextn.bench.dev.micro.op_work import Work
from nextn.families.config import ModelConfig
from nextn.layers.mlp import routing_of
from nextn.ops.reference import Reference

VARIANTS = 8


class Routing:
    """A random router and inputs for it. router [E, C] f32. inputs: VARIANTS tensors [rows, C] f32. The
    router's bias is zero."""

    def __init__(self, cfg: ModelConfig, rows: int) -> None:
        gen = torch.Generator().manual_seed(rows)
        self.cfg, self.rows = cfg, rows
        self.router = torch.randn(cfg.n_routed_experts, cfg.hidden_size, generator=gen)
        self.router *= cfg.hidden_size**-0.5
        self.inputs = [
            torch.randn(rows, cfg.hidden_size, generator=gen).bfloat16().float() for _ in range(VARIANTS)
        ]

    @property
    def shape(self) -> str:
        cfg = self.cfg
        size = f"{cfg.hidden_size}x{cfg.moe_intermediate_size}"
        return f"{self.distinct:.1f} of {cfg.n_routed_experts} {size}"

    @cached_property
    def distinct(self) -> float:
        """Number of experts that at least one row uses; the mean over the variants."""
        cfg, ops = self.cfg, Reference()
        found = 0
        for x in self.inputs:
            ids, _ = ops.route(x, self.router, torch.zeros(cfg.n_routed_experts), routing_of(cfg))
            found += len(ids.unique())
        return found / len(self.inputs)

    def work(self, stored: int, size: int) -> Work:
        """The work of the router and its experts. stored: bytes of an expert's weights. size: bytes of an
        element of the rows."""
        cfg, hidden, top_k = self.cfg, self.cfg.hidden_size, self.cfg.num_experts_per_tok
        chosen = op_work.route(self.rows, hidden, cfg.n_routed_experts, top_k, size)
        return chosen + op_work.packed_experts(
            self.rows, hidden, cfg.moe_intermediate_size, top_k, self.distinct, stored, size
        )
