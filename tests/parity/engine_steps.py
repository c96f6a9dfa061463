"""Runs requests through the engine and writes down what each step did to each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from parity.nextn_reference import Step

from nextn.config import EngineConfig
from nextn.engine.engine import Engine
from nextn.engine.executor import Executor, Ran
from nextn.request import Output, Request, SamplingParams
from nextn.scheduler.plan import Plan


@dataclass
class Trace:
    prompt: list[int]
    params: SamplingParams
    steps: list[Step] = field(default_factory=list)
    last: Output | None = None

    @property
    def tokens(self) -> list[int]:
        return [*self.prompt, *(t for s in self.steps for t in s.tokens)]


def make_engine(folder: Path, num_drafts: int, **options: object) -> Engine:
    """Small pages and small chunks, so that short prompts cross both; checked after every step."""
    settings = {
        "page_size": 4, "kv_cache_tokens": 2048, "chunked_prefill_size": 16, "max_running_requests": 8,
        "dtype": "float32", "device": "cpu", "threads": 1, "check_integrity": True,
    }  # fmt: skip
    return Engine(
        EngineConfig(model_path=str(folder), speculative_num_steps=num_drafts, **{**settings, **options})  # type: ignore[arg-type]
    )


class Recorder:
    """The engine's executor, and a note of every span that chose tokens."""

    awake = False

    def __init__(self, inner: Executor, steps: Mapping[str, list[Step]]) -> None:
        self.inner, self.steps = inner, steps

    def launch(self, plan: Plan) -> Ran:
        spans = [(s.rid, tuple(s.draft.tokens)) for s in plan.spans]
        result = self.inner.launch(plan).result()
        for (rid, drafts), res in zip(spans, result.spans, strict=True):
            if res.tokens:
                self.steps[rid].append(Step(drafts, tuple(res.tokens)))
        return Ran(result)


def run(engine: Engine, work: Mapping[str, tuple[Sequence[int], SamplingParams]]) -> dict[str, Trace]:
    """All at once, to the end."""
    traces = {rid: Trace(list(prompt), params) for rid, (prompt, params) in work.items()}
    for rid, trace in traces.items():
        engine.add(Request(rid, list(trace.prompt), trace.params))
    inner = engine._executor
    engine._executor = Recorder(inner, {rid: t.steps for rid, t in traces.items()})  # type: ignore[assignment]
    while engine.has_work():
        for out in engine.step():
            trace = traces[out.rid]
            step = trace.steps[-1]
            assert out.tokens == list(step.tokens)
            assert out.drafted == [*range(1, step.accepted + 1), 0]
            trace.last = out if out.finish_reason is not None else None
    engine._executor = inner
    for trace in traces.values():
        _check_stats(trace)
    return traces


def _check_stats(trace: Trace) -> None:
    """The request's own counters say the same, position by position."""
    assert trace.last is not None
    assert trace.last.finish_reason == "length"
    spec = trace.last.spec
    assert spec is not None
    drafted = [s for s in trace.steps if s.drafts]
    depth = max((len(s.drafts) for s in drafted), default=0)
    assert spec.proposed == [sum(len(s.drafts) > j for s in drafted) for j in range(depth)]
    assert spec.accepted == [sum(s.accepted > j for s in drafted) for j in range(depth)]
