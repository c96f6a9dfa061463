"""Drafting with one NextN layer for each depth, as DeepSeek-V3's report has them (arXiv 2412.19437, 2.2).

Layer k, counted from 0, sees at position i what layer k - 1 made of it (layer 0: the target's hidden state)
and token i + k + 1, and predicts token i + k + 2. With committed tokens t_0 .. t_e, hidden states
h_0 .. h_{e-1} and three layers:

    position    ...   e-3      e-2      e-1       predicts        entries in a cache of its own
    layer 0           t_{e-2}  t_{e-1}  t_e       draft 1         true up to e-1
    layer 1           t_{e-1}  t_e      draft 1   draft 2         true up to e-2
    layer 2           t_e      draft 1  draft 2   draft 3         true up to e-3

So layer k runs over the committed tokens k positions earlier than layer 0, and what it needs to go on is one
state of layer k - 1, which is kept from step to step. Guesses take the rows behind the true ones, which the
next step writes over; of a tree they lie in free slots, as those of `drafter`. Depths beyond the last layer
are chained on it, one position on each.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nextn.draft import Shape
from nextn.kvcache.pool import KVPool
from nextn.layers.batch import Span
from nextn.models.base import Model, take
from nextn.speculative.committed import Committed
from nextn.speculative.drafter import Grown, MTPDrafter


class _Progress:
    """How far the layers are with one request. Entries before position `first` are the prefix cache's.
    Positions are counted from `draft_from`, the first one that the drafter sees."""

    def __init__(self, first: int, draft_from: int, layers: int) -> None:
        self.first, self.draft_from = first, draft_from
        self.next: list[Tensor | None] = [None] * layers  # [k]: [1, C], layer k - 1's where layer k goes on
        self.where: dict[int, int] = {}  # node of the draft -> its row of the last pass


class LayeredDrafter(MTPDrafter):
    """For models of two layers or more."""

    def __init__(self, model: Model, pool: KVPool, shape: Shape) -> None:
        super().__init__(model, pool, shape)
        self.progress: dict[str, _Progress] = {}

    def forget(self, rids: Sequence[str]) -> None:
        super().forget(rids)
        for rid in rids:
            self.progress.pop(rid, None)

    def _catch_up(self, work: Sequence[Committed]) -> int:
        rows = 0
        for w in work:
            if w.extend:
                for spans, states in self.behind.pieces([w]):
                    rows += self._true([w], spans, states)[1]
        return rows

    def _extend(self, hidden: Tensor, work: Sequence[Committed]) -> tuple[Tensor, Sequence[int], int]:
        rows = [row for w in work for row in w.rows]
        spans = [Span(w.following, w.start, w.pages) for w in work]
        states = take(self.model, hidden, rows)[: len(rows)]
        last, ran = self._true(work, spans, states)
        return last, range(len(work)), ran

    def _true(self, work: Sequence[Committed], spans: Sequence[Span], states: Tensor) -> tuple[Tensor, int]:
        """Runs every layer over these requests' committed tokens; spans and states [T, C] are as layer 0 has
        them. Layer 0's output at the end of each span, and how many rows ran."""
        rids = [w.rid for w in work]
        for w, span in zip(work, spans, strict=True):
            progress = self.progress.get(w.rid)
            if progress is None or (span.start == 0 and w.draft_from > progress.draft_from):
                # New, or what lies before the drafter's window was left out.
                self.progress[w.rid] = _Progress(span.start, w.draft_from, self.model.nextn_layers)
            elif progress.draft_from != w.draft_from:
                progress.first = max(0, progress.first + progress.draft_from - w.draft_from)
                progress.draft_from = w.draft_from
        out = self._run(0, spans, states)
        counts = [len(span.tokens) for span in spans]
        last, total = out[[sum(counts[: i + 1]) - 1 for i in range(len(counts))]], sum(counts)
        for layer in range(1, self.model.nextn_layers):
            now: list[Span] = []
            before: list[Tensor] = []
            made = out.split(counts)
            counts = []
            for rid, span, own in zip(rids, spans, made, strict=True):
                progress = self.progress[rid]
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
        return last, total

    def _deeper(self, state: Tensor, growing: Sequence[Grown], depth: int) -> tuple[Tensor, int]:
        layer = min(depth, self.model.nextn_layers - 1)
        spans: list[Span] = []
        before: list[Tensor] = []
        at = 0
        for g in growing:
            progress, tree = self.progress[g.work.rid], g.tree
            g.place()
            # Depths that would lie before `first`: the layer has no state there to make an entry of.
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
                    row = progress.where[parent]
                    before.append(state[row : row + 1])
            spans.append(_span(g, nodes, g.end - layer, none))
            progress.where = {node: at + i for i, node in enumerate(nodes)}
            g.rows = [progress.where[node] for node in tree.frontier]
            at += len(nodes)
        return self._run(layer, spans, torch.cat(before)), at

    def _run(self, layer: int, spans: Sequence[Span], states: Tensor) -> Tensor:
        """The layer's output [T, C] for the T rows of the spans, which no later step writes over."""
        batch = self.model.batch(spans, self.pool.page_size)
        rows = len(states)
        padded = take(self.model, states, list(range(rows)))
        return self.model.draft(batch, padded, self.pool, layer)[:rows].clone()


def _span(g: Grown, nodes: Sequence[int], start: int, none: int) -> Span:
    """Nodes of a draft whose depth 1 is at position `start`, but for those of the first `none` depths."""
    tree, pages = g.tree, g.work.pages
    tokens = [tree.tokens[node] for node in nodes]
    if tree.topk == 1:
        return Span(tokens, start - 1 + len(tree.nodes(nodes[0])), pages)
    start += none
    free = g.end - start  # number of the first free slot, counted from `start`
    return Span(tokens, start, pages, [[free + slot for slot in g.slots[node][none:]] for node in nodes])
