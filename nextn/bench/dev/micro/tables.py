"""The results as Markdown: what the terminal shows and what --output-dir keeps."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from nextn.bench.dev.micro.clock import Case
from nextn.bench.dev.micro.results import Micro, OpMeasurement

BUSY = 1.5  # slow reads over fast ones, from which on the numbers are in doubt


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
        "## Where a step's time goes",
        *(in_ops(micro, index) for index in range(len(micro.steps))),
        "## Ops, weights out of the cache",
        "GB/s / share of the read bandwidth; share of what the roofline allows.",
        *(op_table(micro, backend) for backend in backends),
    ]
    if len(backends) > 1:
        parts += ["## Backends side by side", side_by_side([*micro.headline, *micro.ops], backends)]
    return "\n\n".join(parts) + "\n"


def summary(micro: Micro) -> str:
    """The tables for the terminal: without the ops in detail."""
    linear = [op for op in micro.headline if op.backend == micro.backend]
    parts = [ceilings(micro), op_rows(linear), steps(micro)]
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
    shown = [(one.name, one) for one in micro.steps]
    if micro.reference is not None:
        shown.append((f"{micro.reference.name}, reference", micro.reference))
    for name, step in shown:
        one = micro.step(step)
        cells = (
            f"{name}, {one['dtype']}", str(one["rows"]), str(one["context"]), f"{one['ms']:.2f}",
            f"{one['overhead_ms']:.2f}", f"{one['bytes'] / 1e6:.1f}", f"{one['gb_s']:.1f}",
            percent(one["bw_frac"]), percent(one["flop_frac"]), percent(one["roofline"]),
        )  # fmt: skip
        rows.append(cells)
    head = (
        "step", "rows", "context", "ms", "overhead ms", "MB", "GB/s", "of bandwidth", "of operations",
        "of the roofline",
    )  # fmt: skip
    return table(head, rows)


def in_ops(micro: Micro, index: int) -> str:
    """One step's ops, and the rest of its time."""
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
    return f"### {backend}\n\n" + op_rows(
        [op for op in (*micro.headline, *micro.ops) if op.backend == backend]
    )


def side_by_side(ops: Sequence[OpMeasurement], backends: Sequence[str]) -> str:
    """The microseconds of every op in each backend."""
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
    """Markdown whose columns line up in a terminal too: the first to the left, numbers to the right."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    widths = [max(3, width) for width in widths]

    def line(cells: Sequence[str]) -> str:
        first, *others = zip(cells, widths, strict=True)
        padded = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]
        return f"| {' | '.join(padded)} |"

    rule = [":" + "-" * (widths[0] - 1), *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join([line(head), line(rule), *map(line, rows)])
