"""The names of tensors in a family's checkpoints."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True, kw_only=True)
class TensorNames:
    """The names of a model with latent attention (MLA) or grouped-query attention (GQA), and experts.

    The first three are whole names. `layer` is the prefix of decoder layer {layer}, to which all other names
    are appended. mlp, shared_experts and expert (with number {expert}) are prefixes of gate, up and down. A
    name is empty if the family's attention or router does not have the tensor.
    """

    embedding: str
    norm: str
    head: str

    layer: str
    attention_norm: str
    q_proj: str  # GQA, and MLA if one matrix makes the queries
    q_norm: str = ""  # MLA: norm of the queries' latent; GQA: norm of each head
    out: str

    q_down: str = ""  # from here to kv_up: MLA
    q_up: str = ""
    kv_down: str = ""
    kv_norm: str = ""
    kv_up: str = ""

    k_proj: str = ""  # from here to out_bias: GQA
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
        """Prefix of a routed expert, after its layer's prefix."""
        return self.expert.format(expert=expert)


@cache
def numbered(template: str) -> re.Pattern[str]:
    """A pattern for strings that begin with the template. It has a group for each {number}.

    >>> numbered("model.layers.{layer}.").match("model.layers.61.enorm.weight")[1]
    '61'
    """
    return re.compile(re.sub(r"\\{\w+\\}", r"(\\d{1,9})", re.escape(template)))
