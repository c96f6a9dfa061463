"""Measures the variants: in every round each variant takes a turn, on an idle machine."""

from __future__ import annotations

import contextlib
import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cases import Case
from figures import added, decode_speed, prefill_speed
from machine_state import free_share, wait_until_idle
from protocol import Options, Reply, Spec
from runner_process import RunnerFailed, RunnerProcess
from variants import Variant, environment, interpreter

ATTEMPTS = 3
KEEP_FREE = 0.4  # share of memory. With less free, a runner is ended after its turn instead of frozen


@dataclass
class Found:
    """The results of one variant. speeds: by case, tokens/s of every round. texts: by case, texts of the
    first round."""

    engine: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    speeds: dict[str, list[float]] = field(default_factory=dict)
    texts: dict[str, list[list[int]]] = field(default_factory=dict)
    spec: Spec | None = None  # of the first round
    idle: bool = True  # whether the machine was idle before every turn
    error: str | None = None

    def median(self, case: str) -> float | None:
        return statistics.median(self.speeds[case]) if self.speeds.get(case) else None


def measure(
    variants: Sequence[Variant], cases: Sequence[Case], model: str, folder: Path, threads: int, rounds: int,
    most_wait: float, say: Callable[[str], object],
) -> dict[Variant, Found]:  # fmt: skip
    """Measures all variants. If a variant fails, this is reported, and the other variants continue."""
    found = {v: Found() for v in variants}
    kept: dict[Variant, RunnerProcess] = {}
    try:
        for turn in range(rounds):
            for variant in variants:
                if found[variant].error is not None:
                    continue
                say(f"round {turn + 1} of {rounds}: {variant}")
                # This is before the runner runs: an engine that polls while it waits makes the machine busy.
                found[variant].idle &= wait_until_idle(most_wait)
                try:
                    runner = kept.pop(variant, None)
                    if runner is None:
                        runner = _start(variant, model, folder, threads)
                    else:
                        runner.thaw()
                    try:
                        _take_turn(runner, cases, found[variant], first=turn == 0)
                    except BaseException:
                        runner.end()
                        raise
                    if free_share() > KEEP_FREE and turn + 1 < rounds:
                        runner.freeze()
                        kept[variant] = runner
                    else:
                        runner.end()
                except (RunnerFailed, ValueError) as e:
                    found[variant].error = str(e)
                    say(f"{variant} failed: {e}")
    finally:
        for runner in kept.values():
            runner.end()
    return found


def _start(variant: Variant, model: str, folder: Path, threads: int) -> RunnerProcess:
    python = interpreter(variant.engine, folder)
    assert python is not None, variant
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(threads))
    options = Options(model, threads, variant.dtype, variant.drafts, str(folder / variant.engine))
    env = environment(variant.engine, folder, threads, cores)
    return RunnerProcess(python, variant.script, options, env)


def _take_turn(runner: RunnerProcess, cases: Sequence[Case], found: Found, first: bool) -> None:
    found.engine, found.settings = runner.engine, runner.settings
    specs: list[Spec | None] = []
    for case in cases:
        # Warm-up: shapes that are new to an engine can make it compile or allocate memory.
        runner.generate(case.calls[0], min(case.max_tokens, 8))
        once, full, speed = _measured(runner, case)
        found.speeds.setdefault(case.name, []).append(speed)
        if first:
            found.texts[case.name] = [tokens for reply in full or once for tokens in reply.tokens]
            specs += [reply.spec for reply in full]
    if first:
        found.spec = added(specs)


def _measured(runner: RunnerProcess, case: Case) -> tuple[list[Reply], list[Reply], float]:
    """Returns the replies with one token, those with all tokens (none for a prefill case), and the tokens/s.
    On a busy machine these can contradict each other; then it measures again. Raises ValueError after
    ATTEMPTS attempts."""
    for _ in range(ATTEMPTS - 1):
        with contextlib.suppress(ValueError):
            return _measured_once(runner, case)
    return _measured_once(runner, case)


def _measured_once(runner: RunnerProcess, case: Case) -> tuple[list[Reply], list[Reply], float]:
    once = [runner.generate(call, 1) for call in case.calls]
    if case.prefill:
        return once, [], prefill_speed(case.prompt_tokens, once)
    full = [runner.generate(call, case.max_tokens) for call in case.calls]
    return once, full, decode_speed(once, full)
