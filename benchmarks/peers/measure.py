"""Takes the measurements: variants in turn, round after round, each on an idle machine."""

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
KEEP_FREE = 0.4  # of the memory; a runner is ended after its turn rather than frozen when less is left


@dataclass
class Found:
    """Of one variant. speeds: tokens/s of every round by case; texts: of the first round, by case."""

    engine: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    speeds: dict[str, list[float]] = field(default_factory=dict)
    texts: dict[str, list[list[int]]] = field(default_factory=dict)
    spec: Spec | None = None  # of the first round
    idle: bool = True  # whether the machine was, before every turn
    error: str | None = None

    def median(self, case: str) -> float | None:
        return statistics.median(self.speeds[case]) if self.speeds.get(case) else None


def measure(
    variants: Sequence[Variant], cases: Sequence[Case], model: str, folder: Path, threads: int, rounds: int,
    most_wait: float, say: Callable[[str], object],
) -> dict[Variant, Found]:  # fmt: skip
    """A variant that fails is told of and left out of what follows; the others go on."""
    found = {v: Found() for v in variants}
    kept: dict[Variant, RunnerProcess] = {}
    try:
        for turn in range(rounds):
            for variant in variants:
                if found[variant].error is not None:
                    continue
                say(f"round {turn + 1} of {rounds}: {variant}")
                # Before it runs: an engine may poll while it waits, and that is not a neighbour's doing.
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
        # Shapes that an engine sees for the first time may make it compile or grow.
        runner.generate(case.calls[0], min(case.max_tokens, 8))
        once, full, speed = _measured(runner, case)
        found.speeds.setdefault(case.name, []).append(speed)
        if first:
            found.texts[case.name] = [tokens for reply in full or once for tokens in reply.tokens]
            specs += [reply.spec for reply in full]
    if first:
        found.spec = added(specs)


def _measured(runner: RunnerProcess, case: Case) -> tuple[list[Reply], list[Reply], float]:
    """The replies with one token and with all (none of a prefill case), and the tokens/s. Measured again when
    a neighbour took so much that they contradict each other; raises ValueError when that goes on."""
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
