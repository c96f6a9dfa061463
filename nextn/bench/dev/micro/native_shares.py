"""The share of each arithmetic in a whole step of a native model, from its weights. Pure functions.

Multiply-adds are counted like in `step_work`, but with the padding of panels. Only their shares are used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nextn.bench.dev.micro.arithmetic import Shares, of_weight, shares
from nextn.bench.dev.micro.attention_cost import attention_cost
from nextn.bench.dev.micro.step_work import Step, visible
from nextn.models.native import NativeModel
from nextn.ops.cpu.interface import Layer, Weight


def step_shares(model: NativeModel, step: Step, able: Sequence[str]) -> Shares:
    """Shares of the step's operations. able: the kernels' arithmetic, the level's preferred one first
    (`NativePool.able`)."""
    weights, layers = model.weights, model.config.num_hidden_layers
    pair = attention_cost(model.config).pair
    parts = [(of_weight(weights.head, able), float(step.chosen) * size(weights.head))]

    def run(layer: Layer, rows: float, end: float) -> None:
        for weight, count in products(model, layer):
            parts.append((of_weight(weight, able), rows * count * size(weight)))
        parts.append((able[0], visible(rows, end, step.requests) * pair))

    for layer in weights.layers[:layers]:
        run(layer, step.rows, step.end)
    for depth, rows in enumerate(step.draft_passes):
        module, head = weights.nextn[0], weights.draft_head
        run(weights.layers[layers], rows, step.end + depth)
        parts.append((of_weight(module.eh_proj, able), rows * size(module.eh_proj)))
        parts.append((of_weight(head, able), float(step.requests) * size(head)))
    return shares(parts)


def products(model: NativeModel, layer: Layer) -> Iterator[tuple[Weight, float]]:
    """Yields (weight, number of its members that a row is multiplied with) of a layer. A missing weight has
    n_out 0."""
    cfg, mlp = model.config, layer.mlp
    for weight in (layer.down, layer.q_up, layer.out, mlp.router, mlp.shared_gate_up, mlp.shared_down):
        yield weight, 1.0
    for weight in (layer.key_up, layer.value_up):
        yield weight, float(attention_cost(cfg).ups)
    for weight in (mlp.gate_up, mlp.down):
        yield weight, float(cfg.num_experts_per_tok)


def size(weight: Weight) -> int:
    return int(weight.n_out * weight.n_in)
