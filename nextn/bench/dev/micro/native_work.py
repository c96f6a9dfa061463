"""The work of a whole step of a native model: the bytes of its packed weights, and its operations. Pure.

It counts like `step_work`, but in bytes of the panels. An element has 2 bytes in bf16, 1 byte (plus scales)
in e4m3 and int8, and 4 bytes in the router and in norms. Padding to whole panels of 16 outputs is included. A
KV entry counts without its padding.
"""

from __future__ import annotations

from nextn.bench.dev.micro.attention_cost import attention_cost
from nextn.bench.dev.micro.op_work import Work
from nextn.bench.dev.micro.step_work import Step, step_work
from nextn.models.native import NativeModel
from nextn.ops.cpu.interface import Layer, Weight


def native_step_work(model: NativeModel, step: Step) -> Work:
    cfg, weights = model.config, model.weights
    hidden, head, entry = cfg.hidden_size, weight_bytes(weights.head), attention_cost(cfg).entry
    norms = 4 * hidden
    moved = float(2 * step.rows * hidden + norms + head)
    for layer in weights.layers[: cfg.num_hidden_layers]:
        moved += layer_bytes(model, layer) + 2 * step.requests * step.end * entry
    if step.drafts:
        nextn = layer_bytes(model, weights.layers[cfg.num_hidden_layers])
        nextn += weight_bytes(weights.nextn[0].eh_proj)
        for depth, rows in enumerate(step.draft_passes):
            moved += nextn + 3 * norms + weight_bytes(weights.draft_head)
            moved += 2 * step.requests * (step.end + depth) * entry + 2 * rows * hidden
    return Work(round(moved + step.experts * expert_bytes(model)), step_work(cfg, step, 2).flops)


def layer_bytes(model: NativeModel, layer: Layer) -> int:
    """Bytes of a layer without its routed experts."""
    cfg, mlp = model.config, layer.mlp
    found = sum(map(weight_bytes, (layer.down, layer.q_up, layer.out)))
    attention = attention_cost(cfg)
    found += attention.ups * (weight_bytes(layer.key_up) + weight_bytes(layer.value_up))
    found += sum(map(weight_bytes, (mlp.router, mlp.shared_gate_up, mlp.shared_down)))
    vectors = 2 * cfg.hidden_size + attention.vectors
    return found + 4 * (vectors + int(mlp.experts))


def expert_bytes(model: NativeModel) -> float:
    """Bytes of one routed expert of the target, the mean over the layers; 0 without experts."""
    sizes = [
        weight_bytes(layer.mlp.gate_up) + weight_bytes(layer.mlp.down)
        for layer in model.weights.layers[: model.config.num_hidden_layers]
        if layer.mlp.experts
    ]
    return sum(sizes) / len(sizes) if sizes else 0.0


def weight_bytes(weight: Weight) -> int:
    """Bytes of one member (head, expert) of a weight: panels and scales; 0 for a missing weight."""
    return int(weight.stride + 4 * weight.scale_stride) if weight.data else 0
