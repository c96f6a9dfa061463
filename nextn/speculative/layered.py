"""Drafting with one NextN layer for each depth, as DeepSeek-V3's report has them (arXiv 2412.19437, 2.2).

The input of layer k, counted from 0, at position i is the output of layer k - 1 there (layer 0: the target's
hidden state) and token i + k + 1. It predicts token i + k + 2. With committed tokens t_0 .. t_e, hidden
states h_0 .. h_{e-1} and three layers:

    position    ...   e-3      e-2      e-1       predicts        final entries in its own cache
    layer 0           t_{e-2}  t_{e-1}  t_e       draft 1         up to e-1
    layer 1           t_{e-1}  t_e      draft 1   draft 2         up to e-2
    layer 2           t_e      draft 1  draft 2   draft 3         up to e-3

So layer k runs over the committed tokens k positions earlier than layer 0. To continue, it needs one state of
layer k - 1, which is kept from step to step. Guesses use the slots after the final entries, and the next step
overwrites them. The nodes of a tree use free slots, as in `mtp`. For depths beyond the number of layers, the
last layer is used again, each time one position further.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nextn.draft import Shape
from nextn.kvcache.pool import KVPool
from nextn.layers.batch import Span
from nextn.models.base import Model, take
from nextn.ops.base import Draw
from nextn.sampling.sampler import draw
from nextn.speculative.base import DraftSpan
from nextn.speculative.draft_state import LayerProgress
from nextn.speculative.grown import Grown
from nextn.speculative.mtp import MTPDrafter


class LayeredDrafter(MTPDrafter):
    """For models with two or more NextN layers."""

    def __init__(self, model: Model, pool: KVPool, shape: Shape, draw: Draw = draw) -> None:
        super().__init__(model, pool, shape, draw, plain=True)

    def _run_layer(
        self, owners: Sequence[DraftSpan], spans: Sequence[Span], hidden: Tensor, rows: list[int]
    ) -> tuple[Tensor, Sequence[int], int]:
        """Runs all layers over these tokens. spans and hidden are those of layer 0. Returns layer 0's output
        at the end of each span."""
        states = take(self.model, hidden, rows)[: len(rows)]
        for owner, span in zip(owners, spans, strict=True):
            progress = owner.state.layers
            if progress is None or (span.start == 0 and owner.draft_from > progress.draft_from):
                # A new request, or positions before the drafter's window were skipped.
                layers: list[Tensor | None] = [None] * self.model.nextn_layers
                owner.state.layers = LayerProgress(span.start, owner.draft_from, layers)
            elif progress.draft_from != owner.draft_from:
                progress.first = max(0, progress.first + progress.draft_from - owner.draft_from)
                progress.draft_from = owner.draft_from
        out = self._run(0, spans, states)
        counts = [len(span.tokens) for span in spans]
        last, total = out[[sum(counts[: i + 1]) - 1 for i in range(len(counts))]], sum(counts)
        for layer in range(1, self.model.nextn_layers):
            now: list[Span] = []
            before: list[Tensor] = []
            made = out.split(counts)
            counts = []
            for owner, span, own in zip(owners, spans, made, strict=True):
                progress = _progress(owner)
                start = max(progress.first, span.start - layer)
                tokens = span.tokens[max(0, progress.first - (span.start - layer)) :]
                counts.append(len(tokens))
                if tokens:
                    now.append(Span(tokens, start, span.pages))
                kept = progress.next[layer]
                before += [own[:-1]] if kept is None else [kept, own[:-1]]
                if len(own):
                    progress.next[layer] = own[-1:].clone()
            if not now:
                break
            out = self._run(layer, now, torch.cat(before))
            total += sum(counts)
        return last, range(len(spans)), total

    def _deeper(
        self, state: Tensor, growing: Sequence[Grown], depth: int, tokens: Tensor | None
    ) -> tuple[Tensor, int]:
        assert tokens is None
        layer = min(depth, self.model.nextn_layers - 1)
        spans: list[Span] = []
        before: list[Tensor] = []
        at = 0
        for g in growing:
            progress, tree = _progress(g.span), g.tree
            if tree.topk > 1:
                g.place()
            # Depths whose position would be before `first`: the layer has no state for an entry there.
            none = max(0, progress.first - (g.end - layer))
            nodes = list(tree.frontier)
            if depth == layer:
                nodes = sorted({node for f in tree.frontier for node in tree.nodes(f)[none:]})
            for node in nodes:
                parent = tree.parents[node]
                if parent < 0:
                    root = progress.next[layer]
                    assert root is not None
                    before.append(root)
                else:
                    row = g.where[parent]
                    before.append(state[row : row + 1])
            spans.append(_span(g, nodes, g.end - layer, none))
            g.where = {node: at + i for i, node in enumerate(nodes)}
            g.rows = [g.where[node] for node in tree.frontier]
            at += len(nodes)
        return self._run(layer, spans, torch.cat(before)), at

    def _run(self, layer: int, spans: Sequence[Span], states: Tensor) -> Tensor:
        """A copy of the layer's output [T, C] for the T rows of the spans."""
        batch = self.model.batch(spans, self.pool.page_size)
        rows = len(states)
        padded = take(self.model, states, list(range(rows)))
        return self.model.draft(batch, padded, self.pool, layer)[:rows].clone()


def _progress(span: DraftSpan) -> LayerProgress:
    assert span.state.layers is not None, "it extended first"
    return span.state.layers


def _span(g: Grown, nodes: Sequence[int], start: int, none: int) -> Span:
    """Nodes of a draft whose depth 1 is at position `start`, without those of the first `none` depths."""
    tree, pages = g.tree, g.span.pages
    tokens = [tree.tokens[node] for node in nodes]
    if tree.topk == 1:
        return Span(tokens, start - 1 + len(tree.nodes(nodes[0])), pages)
    start += none
    free = g.end - start  # number of the first free slot, counted from `start`
    return Span(tokens, start, pages, [[free + slot for slot in g.slots[node][none:]] for node in nodes])
