"""What steps cost on this machine, from whole steps that are tried at start-up.

A few made-up requests decode for some steps, in batches of several sizes, on the executor that will serve.
What a draft costs shows in the difference between steps of one batch: that make none, one or eight drafts and
verify none of them, and that verify two or four. They are gone through in turn, over and over, and each
round has its own differences, since these machines are shared and everything is slow together; the middle one
of the rounds counts. What this misses is learnt while the engine serves, by `nextn.speculative.measured` or,
where drafts are gated, `pace`.

Nothing of it is left: the requests' pages are garbage that is written over before it is read, the prefix
cache is one of their own, and their acceptance, being of made-up texts, is told to nobody.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from statistics import median

import numpy as np

from nextn.draft import Draft
from nextn.engine.runner import Runner
from nextn.kvcache.manager import KVManager
from nextn.kvcache.radix import RadixCache
from nextn.request import Request, SamplingParams
from nextn.scheduler.auto_depth import AutoDepth
from nextn.scheduler.plan import StepResult
from nextn.scheduler.scheduler import Scheduler
from nextn.speculative.costs import StepCosts
from nextn.speculative.depth import DepthController, DraftState

DOUBT = 0.25  # of these costs, see nextn.speculative.measured
SECONDS = 0.15  # for each number of requests; two rounds are made whatever the time
ENOUGH = 1.0  # seconds, after which no further number of requests is begun
REQUESTS = (1, 16, 64)
# (drafts made, verified)
NONE, ONE, EIGHT, TWO_VERIFIED, FOUR_VERIFIED = (0, 0), (1, 0), (8, 0), (2, 2), (4, 4)
SETTINGS = (NONE, ONE, EIGHT, TWO_VERIFIED, FOUR_VERIFIED)
_ROUNDS, _STEPS = 5, 3
_PROMPT, _OWN = 128, 4  # tokens that all requests share, and such that they do not
# Tokens that a request may come to decode, more than it can.
_LENGTH = _ROUNDS * len(SETTINGS) * (1 + _STEPS) * 3 + 64
# Of a step without drafts, what a row more for each request can take, and a pass of the draft layer: a busy
# machine tells anything, and of what is said to cost nothing nobody learns that it does not.
_ROW, _PASS = (0.02, 0.6), (0.01, 0.5)
# Where there is no room to try: of a step, its time as the unit.
_GUESS = {NONE: 1.0, ONE: 1.1, EIGHT: 1.6, TWO_VERIFIED: 1.4, FOUR_VERIFIED: 1.7}


def rehearse(
    executor: Runner, *, put_off: bool, most_requests: int, token_budget: int, context: int, ahead: int
) -> StepCosts:  # fmt: skip
    """put_off: see AutoDepth. context: most tokens of a request. ahead: see RadixCache."""
    pool = executor.pool
    pages = pool.data.shape[1] // pool.page_size
    prompt = min(_PROMPT, context - _LENGTH - _OWN)
    begin = time.perf_counter()
    tried: dict[int, dict[tuple[int, int], float]] = {}
    for n in REQUESTS:
        room = prompt + n * (_OWN + _LENGTH + 2 * pool.page_size) < pages * pool.page_size
        fits = prompt > 0 and room and n <= most_requests and n * 5 <= token_budget
        if not fits or time.perf_counter() - begin > ENOUGH:
            break
        stage = _Stage(executor, put_off, most_requests, token_budget, ahead, pages)
        tried[n] = stage.run(n, prompt)
    return costs_of(tried or {1: _GUESS})


def costs_of(tried: dict[int, dict[tuple[int, int], float]]) -> StepCosts:
    """tried: requests -> (drafts made, verified) -> seconds of such a step."""
    extend, draft, slope = {}, {}, {}
    for n, seconds in tried.items():
        # Over one position a request here, and over two or so when drafts hold: that is in `slope`.
        none = seconds[NONE]
        extend[2 * n] = _within(_PASS, seconds[ONE] - none, none)
        draft[n] = _within(_PASS, (seconds[EIGHT] - seconds[ONE]) / 7, none)
        two = seconds[TWO_VERIFIED] - (seconds[ONE] + draft[n])
        four = seconds[FOUR_VERIFIED] - (seconds[ONE] + 3 * draft[n])
        # Of a row, where there are about so many requests' rows.
        slope[n] = _within(_ROW, (two + four) / 6, none) / n
    # Rows cost more or less according to how many there are, requests besides.
    first = min(tried)
    target = {first: 0.5 * tried[first][NONE]}
    for less, more in zip(list(tried), [*list(tried)[1:], 8 * max(tried)], strict=True):
        target[more] = target[less] + slope[less] * (more - less)
    request = {n: max(1e-8, seconds[NONE] - target[n]) for n, seconds in tried.items()}
    steps = [seconds[NONE] for seconds in tried.values()]
    return StepCosts(target, _line(extend, steps), _line(draft, steps), 0.0, request)


def _line(points: dict[int, float], steps: Sequence[float]) -> dict[int, float]:
    """Two points of the line, nowhere falling, that is closest to these in shares of the steps that they were
    measured in. A pass of the draft layer takes so much, and so much for each row: four measurements together
    say that better than each one does by itself."""
    x, y = np.array(list(points), float), np.array(list(points.values()))
    weights = 1.0 / np.array(steps) ** 2
    middle, level = np.average(x, weights=weights), np.average(y, weights=weights)
    spread = float(weights @ (x - middle) ** 2)
    rise = max(0.0, float(weights @ ((x - middle) * (y - level))) / spread) if spread else 0.0
    first, last = min(points), max(points)
    start = level + rise * (first - middle)
    if start <= 0.0:  # through the origin
        rise, start = level / middle, level / middle * first
    return {first: float(start), last: float(start + rise * (last - first))}


def _within(bounds: tuple[float, float], seconds: float, step: float) -> float:
    return min(bounds[1] * step, max(bounds[0] * step, seconds))


class _Stage:
    """One batch size."""

    def __init__(
        self, executor: Runner, put_off: bool, most_requests: int, token_budget: int, ahead: int, pages: int
    ) -> None:
        self.executor = executor
        self.auto = _OneDepth(put_off)
        page_size = executor.pool.page_size
        self.scheduler = Scheduler(
            KVManager(pages, page_size, RadixCache(page_size, ahead=ahead)),
            token_budget=token_budget, max_running=most_requests, num_drafts=8, eos_ids=frozenset(),
            auto=self.auto,
        )  # fmt: skip
        self.random = random.Random(0)

    def run(self, n: int, prompt: int) -> dict[tuple[int, int], float]:
        """Seconds of a step of each setting."""
        shared = self._tokens(prompt)
        self._add(0, shared)
        self._step()  # its prompt is in the cache now
        for i in range(1, n):
            self._add(i, shared)
        while not all(r.decoding for r in self.scheduler.by_rid.values()):
            self._step()
        end = time.perf_counter() + SECONDS
        rounds: list[dict[tuple[int, int], float]] = []
        while len(rounds) < 2 or (len(rounds) < _ROUNDS and time.perf_counter() < end):
            took = {}
            for setting in SETTINGS[:: -1 if len(rounds) % 2 else 1]:
                self.auto.all.depth, verified = setting
                self._step()  # drafts as it says, and catches up
                took[setting] = min(self._step(verified) for _ in range(_STEPS))
            rounds.append(took)
        for rid in list(self.scheduler.by_rid):
            self.scheduler.abort(rid)
        self.executor.drafter.forget([str(i) for i in range(n)])
        none = median(took[NONE] for took in rounds)
        return {s: none * median(took[s] / took[NONE] for took in rounds) for s in SETTINGS}

    def _add(self, i: int, shared: list[int]) -> None:
        params = SamplingParams(max_tokens=_LENGTH, temperature=0.0, ignore_eos=True)
        req = Request(str(i), shared + self._tokens(_OWN), params)
        req.num_prompt, req.order = len(req.tokens), i
        req.limit = req.num_prompt + _LENGTH
        self.scheduler.add(req)

    def _tokens(self, count: int) -> list[int]:
        vocabulary = self.executor.model.config.vocab_size
        return [self.random.randrange(vocabulary) for _ in range(count)]

    def _step(self, verified: int = 0) -> float:
        for req in self.scheduler.by_rid.values():
            req.draft = req.draft.cut(verified, verified)
        begin = time.perf_counter()
        plan = self.scheduler.plan()
        self.scheduler.commit(plan, self.executor.run(plan))
        return time.perf_counter() - begin


class _OneDepth(AutoDepth):
    """The same for all, set from outside."""

    def __init__(self, put_off: bool) -> None:
        super().__init__(DepthController(costs_of({1: _GUESS})), put_off)
        self.all = DraftState()

    def state(self, req: Request) -> DraftState:
        return self.all

    def note(self, req: Request, draft: Draft, accepted: int) -> None:
        pass

    def stepped(self, result: StepResult, seconds: float | None, running: object) -> None:
        pass
