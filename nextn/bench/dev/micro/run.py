"""`nextn bench micro` measures both ceilings, the ops and kernels of every backend, and whole steps.

Everything runs in one process, in turns. First come ceilings and ops, in rounds (clock.py). Then come steps,
with samples of the read ceiling between them (steps.py). At the end two ranks run steps (rank_steps.py) and
gather a row (gather.py). The medians over all rounds are reported.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from nextn.bench.console import print_markdown
from nextn.bench.dev.micro.arena import Arena, arena_bytes
from nextn.bench.dev.micro.cases import CONTEXT, LINEAR, Bench, OpCase
from nextn.bench.dev.micro.ceilings import Ceilings, cache_bytes, make_ceilings
from nextn.bench.dev.micro.clock import NATIVE, Case, measure
from nextn.bench.dev.micro.formats import BFLOAT16, WeightFormat
from nextn.bench.dev.micro.gather import measure_gather
from nextn.bench.dev.micro.native_cases import NativeBench
from nextn.bench.dev.micro.native_pool import native_pool
from nextn.bench.dev.micro.plot import roofline_plot
from nextn.bench.dev.micro.rank_steps import measure_rank_steps
from nextn.bench.dev.micro.results import Micro, op_measurements
from nextn.bench.dev.micro.steps import StepBench, StepMeasurement
from nextn.bench.dev.micro.tables import report, summary
from nextn.bench.machine import this_machine
from nextn.bench.progress import Progress
from nextn.config import FAKE, EngineConfig, model_folder, usable_cores
from nextn.engine.kernels import choose_kernels, dtype_of, ways_of
from nextn.families.config import ModelConfig
from nextn.models.names import product_shapes
from nextn.ops.cpu.library import choose_level
from nextn.ops.cpu.reading import non_temporal
from nextn.ops.registry import make_ops


@dataclass(frozen=True)
class Effort:
    """rounds: rounds of ceilings and ops. steps: pairs of steps of each kind. seconds: time limit of each of
    these two parts."""

    rounds: int
    steps: int
    seconds: float


F32_BYTES = 4
OFTEN = 4  # samples in a round of each case that the headline numbers use
QUICK = Effort(rounds=7, steps=24, seconds=11.0)
FULL = Effort(rounds=41, steps=120, seconds=90.0)


@dataclass(frozen=True)
class Settings:
    config: EngineConfig
    quick: bool = False
    output_dir: Path | None = None
    bar: bool = False
    weights: WeightFormat = BFLOAT16  # of the native ops; steps have the model's weights


def run_micro(settings: Settings) -> int:
    """Prints tables; if stdout is not a terminal, prints JSON as the last line. Returns 0. Raises ValueError
    for a configuration that cannot be measured, and OSError."""
    if settings.output_dir is not None:
        settings.output_dir.mkdir(parents=True, exist_ok=True)
    effort = QUICK if settings.quick else FULL
    with Progress(effort.rounds, settings.bar, "rounds") as progress:
        micro = find(settings, effort, progress)
    print_markdown(summary(micro) + "\n", sys.stdout)
    if settings.output_dir is not None:
        folder = settings.output_dir
        (folder / "micro.json").write_text(micro.as_json() + "\n", encoding="utf-8")
        (folder / "micro.md").write_text(report(micro), encoding="utf-8")
        (folder / "roofline.png").write_bytes(roofline_plot(micro))
        print(f"written to {folder}: micro.json, micro.md, roofline.png", end="\n\n")
    if not sys.stdout.isatty():  # for scripts
        print(micro.as_json())
    return 0


def find(settings: Settings, effort: Effort, progress: Progress) -> Micro:
    begin = time.perf_counter()
    config = on_cpu(settings.config)
    cfg = ModelConfig.from_folder(model_folder(config.model_path))
    backend = choose_kernels(config, torch.device("cpu"))
    native = backend == "cpu"
    if not native and settings.weights != BFLOAT16:
        raise ValueError(
            f"--weight-format {settings.weights.name} is for the native kernels, and this is plain torch: "
            "leave it out, or build the kernels and leave out --kernel-backend reference and --dtype float32"
        )
    # The native kernels get all cores, as in the engine (nextn.engine.build). The plain torch that they are
    # compared with gets as many.
    threads = config.threads or (usable_cores() if native else max(1, usable_cores() - 1))
    config = dataclasses.replace(config, threads=threads)
    torch.set_num_threads(threads)
    level = choose_level(config.cpu_isa)[0] if native else None
    pool = native_pool(threads, level)
    dtype = dtype_of(config.dtype, backend)
    arena = Arena(arena_bytes(cfg, cache_bytes(3), 4 * LINEAR[0] * LINEAR[1]))
    end = min(CONTEXT, cfg.max_position_embeddings)
    progress.now("ceilings and ops")
    ceilings = make_ceilings(pool)
    linear_dtype = torch.bfloat16 if config.dtype == "auto" else dtype
    kernels = None
    if native:
        assert pool is not None
        assert level is not None
        past = non_temporal(level, arena.data.nbytes)
        kernels = NativeBench(pool, cfg, arena, end, settings.weights, ways_of(config, level), past)
    headline, ops = all_cases(cfg, dtype, linear_dtype, arena, end, kernels)
    turns = in_turns([*ceilings.read, ceilings.bf16[-1], *(h.case for h in headline)], [o.case for o in ops])
    peaks = ceilings.native.values()
    with torch.inference_mode():
        measure(
            [*ceilings.caches.values(), *ceilings.bf16[:-1], *ceilings.f32, *turns, *peaks],
            effort.rounds,
            effort.seconds,
            lambda n, of: progress.advance(),
        )
    progress.now("steps")
    steps, plain = steps_of(config, native, ceilings, effort)
    progress.now("ranks")
    ranks = measure_rank_steps(config) if native else None
    gather = measure_gather(F32_BYTES * cfg.hidden_size) if native else None
    return Micro(
        model=config.model_path,
        dtype=str(dtype).removeprefix("torch."),
        backend=backend,
        cpu_isa=level,
        threads=threads,
        quick=settings.quick,
        machine=this_machine(),
        ceilings=ceilings,
        headline=op_measurements(headline, ceilings),
        ops=op_measurements(ops, ceilings),
        steps=steps,
        reference=plain,
        gather=gather,
        ranks=ranks,
        seconds=time.perf_counter() - begin,
    )


def steps_of(
    config: EngineConfig, native: bool, ceilings: Ceilings, effort: Effort
) -> tuple[list[StepMeasurement], StepMeasurement | None]:
    """Measures the engine's steps and, if it has native kernels, also plain torch's step of one row."""
    seconds = effort.seconds / 3
    steps = StepBench(config, ceilings, effort.steps, seconds).run()
    if not native:
        return steps, None
    plain = dataclasses.replace(config, kernel_backend="reference", quantization=None, cpu_isa="auto")
    return steps, StepBench(plain, ceilings, effort.steps, seconds).run_decode()


def in_turns(often: Sequence[Case], others: Sequence[Case]) -> list[Case]:
    """The order of one round. The others are cut into OFTEN parts; each part runs together with all of
    `often`, torch's cases first."""
    parts = [others[i::OFTEN] for i in range(OFTEN)]
    return [case for part in parts for case in sorted((*often, *part), key=lambda one: one.team == NATIVE)]


def on_cpu(config: EngineConfig) -> EngineConfig:
    if config.device == "cuda":
        raise ValueError("--device cuda: bench micro measures the CPU; leave it out")
    if config.model_path.partition(":")[0] == FAKE:
        raise ValueError(f"--model-path {config.model_path} has no arithmetic to measure")
    return dataclasses.replace(config, device="cpu")


def all_cases(
    cfg: ModelConfig,
    dtype: torch.dtype,
    linear_dtype: torch.dtype,
    arena: Arena,
    end: int,
    native: NativeBench | None,
) -> tuple[list[OpCase], list[OpCase]]:
    """The headline linear, and all ops of the model: on native kernels if there are any, and on plain torch.
    end: positions that attention sees."""
    cpu = torch.device("cpu")
    headline: list[OpCase] = []
    ops: list[OpCase] = []
    if native is not None:
        headline, ops = native.headline(), native.cases()
    headline += Bench(make_ops({LINEAR}, linear_dtype, cpu), cfg, linear_dtype, arena, end).headline()
    ops += Bench(make_ops(product_shapes(cfg), dtype, cpu), cfg, dtype, arena, end).cases()
    return headline, ops
