"""Two engines in this process. One computes the prompts of the other's requests. Pages are copied between
steps, without sockets, and fail as often as a test wants."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import torch

from nextn.engine.engine import Engine
from nextn.request import Failure, Output, Request, SamplingParams
from nextn.scheduler.transfers import sent_slots


@dataclass
class TwoEngines:
    """breaks: share of transfers that break off. most: maximum of pages of each request that are copied after
    a step."""

    prefill: Engine
    decode: Engine
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    breaks: float = 0.0
    fallback: bool = True
    most: int = 1
    pages: int = 0  # pages copied
    broken: int = 0
    _sent: dict[str, int] = field(default_factory=dict)  # by request: pages copied so far
    _ends: dict[str, int] = field(default_factory=dict)  # by request: number of pages at which it breaks off
    _computing: dict[str, Request] = field(default_factory=dict)

    def add(self, rid: str, tokens: list[int], params: SamplingParams, priority: int = 0) -> None:
        self.decode.add(Request(rid, list(tokens), params, priority, fetch=True))
        asked = params.replace(max_tokens=0, min_tokens=0)
        half = Request(rid, list(tokens), asked, hold=True)
        self.prefill.add(half)
        self._computing[rid] = half

    def abort(self, rid: str) -> None:
        self.decode.abort(rid)

    def has_work(self) -> bool:
        return self.decode.has_work() or self.prefill.has_work()

    def step(self) -> list[Output]:
        self.prefill.step()
        outputs = self.decode.step()
        for request in self.decode.transfers.begun():
            self._sent[request.rid] = request.committed // self.decode.config.page_size
            whole = 99 if self.rng.random() >= self.breaks else self.rng.randrange(3)
            self._ends[request.rid] = self._sent[request.rid] + whole
        for rid in list(self._sent) * self.most:
            outputs += self._go_on(rid) if rid in self._sent else []
        for rid in list(self.prefill.transfers.held):
            if rid not in self.decode._scheduler.by_rid or self.rng.random() < 0.5:
                self.prefill.transfers.release(rid)
        return outputs

    def _go_on(self, rid: str) -> list[Output]:
        request = self.decode.transfers.fetching.get(rid)
        size, sent, half = self.decode.config.page_size, self._sent[rid], self._computing[rid]
        if request is None:
            del self._sent[rid]
            return []
        info = self.prefill.info
        whole = sent_slots(half.num_prompt, info.nextn_layers, size)
        there = min(whole, half.committed)
        pages = -(-there // size) if there == whole else there // size
        gone = not half.pages and half.rid not in self.prefill._scheduler.by_rid
        if not gone and sent < min(pages, self._ends[rid]):
            data = torch.empty(info.cache_layers, size, info.cache_width, dtype=getattr(torch, info.dtype))
            self.prefill.transfers.read(half, sent, 1, data)
            self.decode.transfers.write(request, sent, data)
            self._sent[rid] += 1
            self.pages += 1
            return []
        if gone or sent >= self._ends[rid]:
            del self._sent[rid]
            self.broken += 1
            error = None if self.fallback else Failure("prefill_failed", "it broke off")
            slots = max(min(sent * size, whole), request.committed)
            return self.decode.transfers.fetched(rid, slots, 0, error)
        if sent * size >= whole or (sent >= pages and there == whole):
            del self._sent[rid]
            slots = max(whole, request.committed)
            return self.decode.transfers.fetched(rid, slots, half.first_cached)
        return []
