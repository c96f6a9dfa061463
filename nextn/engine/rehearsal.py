"""Whole steps, tried at start-up: by how much they miss what the table of costs says of them.

The table (`probe_costs`) is made of parts that were run one by one, each row a request of its own. A step has
more to it: the Python around the parts, rows that share their request's cache, drafts in one native call. So a
few made-up requests decode for some steps, with no drafts, with one, with two and with four, over and over in
turn, on the scheduler and the executor that will serve; only the prefix cache is one of their own. Nothing of
it is left: their pages are garbage, and their acceptance, being of made-up texts, is told to nobody.
"""

from __future__ import annotations

import random
import time

from nextn.draft import MOST_DEPTH
from nextn.engine.runner import Runner
from nextn.kvcache.manager import KVManager
from nextn.kvcache.radix import RadixCache
from nextn.request import Request, SamplingParams
from nextn.scheduler.auto_depth import AutoDepth
from nextn.scheduler.plan import StepResult
from nextn.scheduler.scheduler import Scheduler
from nextn.speculative.depth import DepthController

SECONDS = 0.8  # for all; what has begun is finished
REQUESTS = (1, 4, 16, 64)
DEPTHS = (0, 1, 2, 3, 4)
_ROUNDS, _STEPS = 4, 2
_PROMPT, _OWN = 128, 4  # tokens that all requests share, and such that they do not
_SPARE = 64  # tokens that the first ones may decode while the others come in
_PAGES = 3  # more than a request wants for itself, of those that hold what it may decode


class _OneDepth(AutoDepth):
    """The same for all, set from outside."""

    def __init__(self, controller: DepthController, put_off: bool) -> None:
        super().__init__(controller, put_off)
        self.now = 0
        self.result: StepResult | None = None

    def depth(self, req: Request) -> int:
        return self.now

    def note(self, req: Request, verified: int, accepted: int) -> None:
        pass

    def stepped(self, result: StepResult, seconds: float | None, running: object) -> None:
        self.result = result


def rehearse(
    executor: Runner, controller: DepthController, *, put_off: bool, most_requests: int, token_budget: int,
    context: int, ahead: int, seconds: float = SECONDS,
) -> None:  # fmt: skip
    """Tells `controller.measured` what it finds. put_off: see AutoDepth. ahead: see RadixCache."""
    pool = executor.pool
    pages = pool.data.shape[1] // pool.page_size
    end = time.perf_counter() + seconds
    length = _ROUNDS * len(DEPTHS) * (_STEPS + 1) * (1 + DEPTHS[-1]) + _SPARE
    for n in REQUESTS:
        prompt = min(_PROMPT, context - length - _OWN)
        wanted = (prompt + n * (_OWN + length)) // pool.page_size + _PAGES * n
        if prompt < 1 or n > most_requests or n * (1 + DEPTHS[-1]) > token_budget or wanted > pages:
            break
        stage = _Stage(executor, controller, put_off, most_requests, token_budget, ahead, pages)
        missed = stage.run(n, prompt, prompt + _OWN + length, end)
        controller.measured.rehearsed(n, missed)


class _Stage:
    def __init__(
        self, executor: Runner, controller: DepthController, put_off: bool, most_requests: int,
        token_budget: int, ahead: int, pages: int,
    ) -> None:  # fmt: skip
        self.executor, self.costs = executor, controller.costs
        self.depths = [d for d in DEPTHS if d <= controller.most]
        self.auto = _OneDepth(controller, put_off)
        page_size = executor.pool.page_size
        self.scheduler = Scheduler(
            KVManager(pages, page_size, RadixCache(page_size, ahead=ahead)),
            token_budget=token_budget, max_running=most_requests, num_drafts=controller.most,
            eos_ids=frozenset(), auto=self.auto,
        )  # fmt: skip
        self.random = random.Random(0)

    def run(self, n: int, prompt: int, limit: int, end: float) -> dict[int, float]:
        """Drafts a request -> real seconds of a step over those of the table: the second best of all tries,
        of which the first round's are made whatever the time."""
        shared = self._tokens(prompt)
        self._add(0, shared, limit)
        self._step()  # its prompt is in the cache now
        for i in range(1, n):
            self._add(i, shared, limit)
        while not all(r.decoding for r in self.scheduler.by_rid.values()):
            self._step()
        found: dict[int, list[float]] = {d: [] for d in self.depths}
        for at in range(_ROUNDS):
            if at and time.perf_counter() > end:
                break
            for depth in self.depths:
                self.auto.now = depth
                self._step()  # verifies what was drafted before, and catches up
                found[depth] += [self._step() for _ in range(_STEPS)]
        for rid in list(self.scheduler.by_rid):
            self.scheduler.abort(rid)
        self.executor.drafter.forget([str(i) for i in range(n)])
        return {depth: sorted(tries)[1] for depth, tries in found.items()}

    def _add(self, i: int, shared: list[int], limit: int) -> None:
        params = SamplingParams(max_tokens=limit, temperature=1.0, seed=i, ignore_eos=True)
        req = Request(str(i), shared + self._tokens(_OWN), params)
        req.num_prompt, req.limit, req.order = len(req.tokens), limit, i
        self.scheduler.add(req)

    def _tokens(self, count: int) -> list[int]:
        vocabulary = self.executor.model.config.vocab_size
        return [self.random.randrange(vocabulary) for _ in range(count)]

    def _step(self) -> float:
        begin = time.perf_counter()
        plan = self.scheduler.plan()
        result = self.executor.run(plan)
        self.scheduler.commit(plan, result)
        seconds = time.perf_counter() - begin
        assert result.work is not None
        return seconds / self.costs.step(result.work)
