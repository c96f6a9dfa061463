"""The results as Markdown: a summary for the terminal, and a report for --output-dir."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from nextn.bench.dev.micro.arithmetic import Shares
from nextn.bench.dev.micro.clock import Case
from nextn.bench.dev.micro.rank_steps import RankSteps
from nextn.bench.dev.micro.results import Micro, OpMeasurement
from nextn.bench.dev.micro.steps import StepMeasurement

MODEL = (
    "Reading is bytes over the read bandwidth. Arithmetic is operations over the peak of the instructions in "
    "the last column; if there are several, each counts by its share. If the measured time is near their "
    "max, reading and arithmetic overlap. If it is near their sum, they take turns."
)
BUSY = 1.5  # above this ratio of slow to fast reads, the summary warns that the machine was busy


def report(micro: Micro) -> str:
    """All tables."""
    backends = list(dict.fromkeys(op.backend for op in micro.ops))
    parts = [
        f"# nextn bench micro: {micro.model}",
        f"{micro.machine.line}; threads {micro.threads}; backend {micro.backend} in {micro.dtype}"
        + (f" ({micro.cpu_isa})" if micro.cpu_isa else "")
        + ("; --quick" if micro.quick else ""),
        "## Ceilings",
        ceilings(micro),
        "## Whole steps",
        steps(micro),
        "## Reading and arithmetic of whole steps",
        MODEL,
        step_models(micro),
        *(["## Two ranks", rank_steps(micro.ranks)] if micro.ranks else []),
        "## Where a step's time goes",
        *(in_ops(micro, index) for index in range(len(micro.steps))),
        "## Ops, weights out of the cache",
        "GB/s / share of the read bandwidth; share of what the roofline allows.",
        *(op_table(micro, backend) for backend in backends),
        "## Reading and arithmetic of ops",
        *(f"### {name}\n\n" + op_models(of_backend(micro, name)) for name in backends),
    ]
    if len(backends) > 1:
        parts += ["## Backends side by side", side_by_side([*micro.headline, *micro.ops], backends)]
    return "\n\n".join(parts) + "\n"


def summary(micro: Micro) -> str:
    """The tables for the terminal: without the ops in detail."""
    linear = [op for op in micro.headline if op.backend == micro.backend]
    parts = [ceilings(micro), op_rows(linear), steps(micro), op_models(linear), step_models(micro)]
    if micro.ranks:
        parts.append(rank_steps(micro.ranks))
    if micro.ceilings.unrest > BUSY:
        parts.append(
            f"The machine was busy: the slowest tenth of the reads took {micro.ceilings.unrest:.1f} times as "
            "long as the fastest tenth. Measure again when it is not."
        )
    return "\n\n".join(parts)


def ceilings(micro: Micro) -> str:
    found = micro.ceilings
    read = found.read_bytes_per_s
    rows = [(f"read from memory, {c.name}", gb_s(c), mark(c.bytes_per_s, read)) for c in found.read]
    rows += [(f"read from {name.upper()}", gb_s(case), "") for name, case in found.caches.items()]
    kinds = (("oneDNN bf16", torch.bfloat16, found.bf16), ("float32", torch.float32, found.f32))
    for name, dtype, cases in kinds:
        for case in cases:
            reached = case.flops_per_s
            measured = f"{reached / 1e9:.1f} GFLOP/s"
            rows.append((f"{name}, {case.name}", measured, mark(reached, found.flops_per_s(dtype))))
    rows += [(f"native {name}", f"{c.flops_per_s / 1e9:.1f} GFLOP/s", "") for name, c in found.native.items()]
    if micro.gather is not None:
        name = f"two ranks fill up a row of {micro.gather.bytes} bytes"
        rows.append((name, f"{micro.gather.seconds * 1e6:.1f} us", ""))
    return table(("ceiling", "measured", ""), rows)


def gb_s(case: Case) -> str:
    return f"{case.bytes_per_s / 1e9:.1f} GB/s"


def mark(value: float, ceiling: float) -> str:
    return "the ceiling" if value == ceiling else ""


def steps(micro: Micro) -> str:
    rows = []
    for step in all_steps(micro):
        one = micro.step(step)
        cells = (
            f"{one['name']}, {one['dtype']}", str(one["rows"]), str(one["context"]), f"{one['ms']:.2f}",
            f"{one['overhead_ms']:.2f}", f"{one['bytes'] / 1e6:.1f}", f"{one['gb_s']:.1f}",
            percent(one["bw_frac"]), percent(one["flop_frac"]), percent(one["roofline"]),
        )  # fmt: skip
        rows.append(cells)
    head = (
        "step", "rows", "context", "ms", "overhead ms", "MB", "GB/s", "of bandwidth", "of operations",
        "of the roofline",
    )  # fmt: skip
    return table(head, rows)


def rank_steps(found: Sequence[RankSteps]) -> str:
    rows = [(str(one.requests), f"{1e3 * one.seconds:.2f}", percent(one.waiting)) for one in found]
    return table(("requests, two ranks", "ms", "in communication"), rows)


def all_steps(micro: Micro) -> list[StepMeasurement]:
    """All measured steps, including plain torch's if the engine has native kernels."""
    plain = micro.reference
    if plain is None:
        return micro.steps
    return [*micro.steps, dataclasses.replace(plain, name=f"{plain.name}, reference")]


def in_ops(micro: Micro, index: int) -> str:
    """A table of one step's ops, and its overhead."""
    step = micro.step(micro.steps[index])
    rows = [
        (op, str(found["calls"]), f"{found['ms']:.3f}", percent(found["ms"] / step["ms"]))
        for op, found in step["ops"].items()
    ]
    rows.append(("overhead", "", f"{step['overhead_ms']:.3f}", percent(step["overhead_ms"] / step["ms"])))
    return table((step["name"], "calls", "ms", "of the step"), rows)


def op_rows(found: Sequence[OpMeasurement]) -> str:
    rows = [
        (
            f"{op.op} {op.what} {op.shape}, {op.dtype}", str(op.rows), f"{op.us:.1f}", f"{op.gb_s:.1f}",
            percent(op.bw_frac), f"{op.gflop_s:.1f}", percent(op.flop_frac), percent(op.roofline),
        )
        for op in found
    ]  # fmt: skip
    head = (
        "op", "rows", "us", "GB/s", "of bandwidth", "GFLOP/s", "of operations", "of the roofline"
    )  # fmt: skip
    return table(head, rows)


def op_table(micro: Micro, backend: str) -> str:
    return f"### {backend}\n\n" + op_rows(of_backend(micro, backend))


def of_backend(micro: Micro, backend: str) -> list[OpMeasurement]:
    return [op for op in (*micro.headline, *micro.ops) if op.backend == backend]


def op_models(found: Sequence[OpMeasurement]) -> str:
    return models(
        [
            (f"{op.op} {op.what} {op.shape}, {op.dtype}", op.rows, op.model.as_dict(), op.arithmetic)
            for op in found
        ]
    )


def step_models(micro: Micro) -> str:
    shown = [micro.step(one) for one in all_steps(micro)]
    return models([(f"{s['name']}, {s['dtype']}", s["rows"], s["model"], s["arithmetic"]) for s in shown])


def models(found: Sequence[tuple[str, int, Mapping[str, Any], Shares]]) -> str:
    """A table of times. found: (name, rows, `Bound.as_dict()`, arithmetic)."""
    times = ("read_ms", "arithmetic_ms", "max_ms", "sum_ms", "measured_ms")
    rows = [
        (
            name, str(count), *(f"{model[key]:.4g}" for key in times), f"{model['over_max']:.2f}",
            f"{model['over_sum']:.2f}", model["waits_for"], max(parts, key=lambda one: parts[one]),
        )
        for name, count, model, parts in found
    ]  # fmt: skip
    head = (
        "ms", "rows", "reading", "arithmetic", "max", "sum", "measured", "over max", "over sum", "waits for",
        "by",
    )  # fmt: skip
    return table(head, rows)


def side_by_side(ops: Sequence[OpMeasurement], backends: Sequence[str]) -> str:
    """A table of the microseconds of every op in each backend."""
    cells: dict[tuple[str, str, int], dict[str, float]] = {}
    for op in ops:
        cells.setdefault((f"{op.op} {op.what}, {op.dtype}", op.shape, op.rows), {})[op.backend] = op.us
    rows = [
        (name, shape, str(count), *(f"{us[b]:.1f}" if b in us else "" for b in backends))
        for (name, shape, count), us in cells.items()
    ]
    return table(("op", "shape", "rows", *(f"{b} us" for b in backends)), rows)


def percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.1f} %"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with columns of equal width, so that a terminal shows it well too. The first column is
    aligned to the left, the others to the right."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    widths = [max(3, width) for width in widths]

    def line(cells: Sequence[str]) -> str:
        first, *others = zip(cells, widths, strict=True)
        padded = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]
        return f"| {' | '.join(padded)} |"

    rule = [":" + "-" * (widths[0] - 1), *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join([line(head), line(rule), *map(line, rows)])
