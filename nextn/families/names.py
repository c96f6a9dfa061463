"""What a family's checkpoints call their tensors."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True, kw_only=True)
class TensorNames:
    """Of a model with latent attention (MLA) or grouped-query attention (GQA), and experts.

    The first three are whole names. `layer` is the prefix of decoder layer {layer}; all others follow it.
    mlp, shared_experts and expert (of number {expert}) are prefixes of gate, up and down. Names of what a
    family's attention or router does not have are empty.
    """

    embedding: str
    norm: str
    head: str

    layer: str
    attention_norm: str
    q_proj: str  # of MLA where queries come from one matrix
    q_norm: str = ""  # MLA: of the queries' latent; GQA: of each head
    out: str

    q_down: str = ""  # of MLA, to kv_up
    q_up: str = ""
    kv_down: str = ""
    kv_norm: str = ""
    kv_up: str = ""

    k_proj: str = ""  # of GQA, to out_bias
    v_proj: str = ""
    q_bias: str = ""
    k_bias: str = ""
    v_bias: str = ""
    k_norm: str = ""
    out_bias: str = ""

    mlp_norm: str
    mlp: str
    router: str
    router_bias: str
    expert: str
    shared_experts: str
    gate: str
    up: str
    down: str

    def at(self, layer: int) -> str:
        """Prefix of a decoder layer of the target."""
        return self.layer.format(layer=layer)

    def expert_at(self, expert: int) -> str:
        """Prefix of a routed expert, behind its layer's."""
        return self.expert.format(expert=expert)


@cache
def numbered(template: str) -> re.Pattern[str]:
    """Matches what begins as the template does; a group for each of its {numbers}.

    >>> numbered("model.layers.{layer}.").match("model.layers.61.enorm.weight")[1]
    '61'
    """
    return re.compile(re.sub(r"\\{\w+\\}", r"(\\d{1,9})", re.escape(template)))
