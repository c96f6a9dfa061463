"""The bytes and operations of a whole engine step: the weights that it uses, and KV entries. Pure functions.

Activations are not counted: they stay in the cache. The router is f32; every other element has `size` bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from nextn.bench.dev.micro.attention_cost import attention_cost
from nextn.bench.dev.micro.op_work import Work
from nextn.families.config import ModelConfig


@dataclass(frozen=True)
class Step:
    """A step of one request, or of several equal requests. A plain decode step has rows = chosen = 1. A step
    that verifies k drafts and proposes k has rows = chosen = k + 1, drafts = k. With n requests, rows and
    chosen are n times as many.

    rows: rows of the target; those of a request end at position end - 1. chosen: rows that need logits.
    drafts: drafts of each request for the next step. extended: rows of the draft extend, which are the tokens
    that the step committed. experts: experts read in the whole step, each counted once in each layer's call,
    the NextN layer included.
    """

    rows: int
    end: int
    chosen: int
    experts: float
    drafts: int = 0
    extended: float = 0.0
    requests: int = 1

    @property
    def draft_passes(self) -> list[float]:
        """Rows of each pass of the drafter. The first pass runs over the committed tokens; each further draft
        takes a pass with one row for each request."""
        return [self.extended] + [float(self.requests)] * (self.drafts - 1) if self.drafts else []


def visible(rows: float, end: float, requests: int) -> float:
    """Number of (query, key) pairs of equal requests that have `rows` rows together, each up to `end`."""
    return rows * end - rows * (rows / requests - 1) / 2


def step_work(cfg: ModelConfig, step: Step, size: int) -> Work:
    """The work of the target over `rows`, its head over `chosen`, and the drafter. size: bytes of an
    element."""
    hidden, vocab = cfg.hidden_size, cfg.vocab_size
    weights = float(step.rows * hidden + hidden + vocab * hidden)  # rows of the embedding, last norm, head
    flops = 2.0 * step.chosen * vocab * hidden
    total = Work(0, 0)
    for index in range(cfg.num_hidden_layers):
        total += layer_work(cfg, index, step.rows, step.end, size, step.requests)
    for depth, rows in enumerate(step.draft_passes):  # a head for each draft
        total += layer_work(cfg, cfg.num_hidden_layers, rows, step.end + depth, size, step.requests)
        weights += 2 * hidden * hidden + 3 * hidden + vocab * hidden + rows * hidden
        flops += 4 * rows * hidden * hidden + 2 * step.requests * vocab * hidden
    expert = 3 * hidden * cfg.moe_intermediate_size
    return total + Work(round(size * (weights + step.experts * expert)), round(flops))


def layer_work(cfg: ModelConfig, index: int, rows: float, end: int, size: int, requests: int = 1) -> Work:
    """The work of a decoder layer. It includes the routed experts' operations, but not their bytes."""
    hidden, attention = cfg.hidden_size, attention_cost(cfg)
    products, vectors = attention.products, 2 * hidden + attention.vectors
    routers = routed = 0  # rows of the router's weight; multiply-adds of a token's routed experts
    if cfg.is_moe(index):
        expert = 3 * hidden * cfg.moe_intermediate_size
        routers, routed = cfg.n_routed_experts, cfg.num_experts_per_tok * expert
        products += cfg.n_shared_experts * expert
    else:
        products += 3 * hidden * cfg.intermediate_size
    met = 2 * visible(rows, end, requests) * attention.pair
    moved = size * (products + vectors + requests * end * attention.entry) + 4 * routers * (hidden + 1)
    return Work(moved, round(2 * rows * (products + routers * hidden + routed) + met))
