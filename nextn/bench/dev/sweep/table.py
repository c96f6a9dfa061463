"""The comparison as Markdown tables, laid out like published ones and readable in a terminal too."""

from __future__ import annotations

from collections.abc import Sequence

from nextn.bench.dev.sweep.results import Cell, Results, Row

NOTHING = "-"


def markdown(results: Results) -> str:
    """The heading, and a table for each scenario. It ends with an empty line."""
    lines = [*(f"- {line}" for line in heading(results)), ""]
    for scenario, rows in results.scenarios:
        lines += [f"### {scenario.title}", "", f"{scenario.source}; {prompts_of(rows)}.", ""]
        lines += [*aligned(*layout(results, rows)), ""]
        lines += [*(f"- {line}" for line in failures(results, rows)), ""] if results.failed else []
    return "\n".join(lines)


def heading(results: Results) -> list[str]:
    sides = [
        f"{side.name}: {side.model or side.backend}" + (f", `{side.where}`" if side.where else "")
        for side in results.sides
    ]
    rounds = "1 round" if results.rounds == 1 else f"medians of {results.rounds} rounds"
    sampled = "greedy" if results.temperature == 0 else f"temperature {results.temperature:g}, seeded"
    fresh = (
        "no side keeps a prefix cache: every round computes all of its prompts"
        if results.salt is None
        else f"in every round the prompts begin with a new line (salt {results.salt}): no cache contains them"
    )
    return [
        *sides,
        f"{results.machine.line}; client and servers started here on the same machine",
        f"taking turns, {rounds}; {sampled}, end tokens ignored",
        fresh,
        ratio_is(results),
    ]


def ratio_is(results: Results) -> str:
    base = results.sides[0].name
    columns = "; columns named after a side: output tok/s" if len(results.sides) == 2 else ""
    if results.scenarios[0][1][0].level.concurrency is None:
        return f"ratio: mean latency of a request with {base} over the side's, in each round{columns}"
    return f"ratio: output tok/s over those of {base}, in each round{columns}"


def prompts_of(rows: Sequence[Row]) -> str:
    counts = [row.level.prompts for row in rows]
    low, high = min(counts), max(counts)
    return f"{low} prompts a load" if low == high else f"{low} to {high} prompts a load"


def layout(results: Results, rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """The names of the columns, and the rows of the table."""
    return pairs(results, rows) if len(results.sides) == 2 else groups(results, rows)


def pairs(results: Results, rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """The table of two sides: a row for each load, as in published tables."""
    base, other = (side.name for side in results.sides)
    axis = rows[0].level.axis
    header = [axis, base, other, "ratio", "accept length", "by depth, %", "TTFT ms", "TPOT ms"]
    body = []
    for row in rows:
        a, b = (cell.median for cell in row.cells)
        length, depths = acceptance(row.cells[1])
        body.append([
            f"{row.level.value:g}", f"{a.output_throughput:.1f}", f"{b.output_throughput:.1f}",
            f"{row.ratio(1):.2f}x", length, depths, f"{a.mean_ttft_ms:.0f} → {b.mean_ttft_ms:.0f}",
            f"{a.mean_tpot_ms:.1f} → {b.mean_tpot_ms:.1f}",
        ])  # fmt: skip
    return header, body


def groups(results: Results, rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """The table of more than two sides: at each load a row for each side, and a row that names the best."""
    header = [
        rows[0].level.axis, "side", "tok/s", "ratio", "accept length", "by depth, %", "TTFT ms", "TPOT ms",
    ]  # fmt: skip
    body = []
    for row in rows:
        for i, (side, cell) in enumerate(zip(results.sides, row.cells, strict=True)):
            median = cell.median
            body.append([
                f"{row.level.value:g}", side.name, f"{median.output_throughput:.1f}", f"{row.ratio(i):.2f}x",
                *acceptance(cell), f"{median.mean_ttft_ms:.0f}", f"{median.mean_tpot_ms:.1f}",
            ])  # fmt: skip
        best = f"best: {results.sides[row.best].name}"
        body.append([f"{row.level.value:g}", best, "", f"{row.ratio(row.best):.2f}x", *[""] * 4])
    return header, body


def acceptance(cell: Cell) -> tuple[str, str]:
    """Cells: accept length, and the percentage of drafts accepted at depth 1, 2, ..."""
    length = cell.accept_length
    if length is None:
        return NOTHING, NOTHING
    mark = " (lifetime)" if cell.spec is None else " (simulated)" if cell.simulated else ""
    return f"{length:.2f}{mark}", " ".join(f"{100 * rate:.0f}" for rate in cell.accept_rates) or NOTHING


def failures(results: Results, rows: Sequence[Row]) -> list[str]:
    return [
        f"{side.name} at {row.level}: {count} failed ({kind}), the first: {cell.first_failures[kind]}"
        for row in rows
        for side, cell in zip(results.sides, row.cells, strict=True)
        for kind, count in cell.failures.most_common()
    ]


def aligned(header: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table with columns of equal width: numbers to the right, words to the left."""
    widths = [max(map(len, column)) for column in zip(header, *body, strict=True)]
    left = [name in ("side", "by depth, %") for name in header]

    def line(cells: Sequence[str]) -> str:
        padded = (
            cell.ljust(width) if to_left else cell.rjust(width)
            for cell, width, to_left in zip(cells, widths, left, strict=True)
        )
        return f"| {' | '.join(padded)} |"

    rule = ["-" * (w + 1) + ("-" if to_left else ":") for w, to_left in zip(widths, left, strict=True)]
    return [line(header), f"|{'|'.join(rule)}|", *map(line, body)]


def verdict(results: Results) -> str:
    """Says whether the texts are equal, with the first difference if there is one, and how many requests
    failed."""
    identity = results.identity
    differences = identity.differences
    lines = []
    if identity.compared:
        lines.append(
            f"{identity.compared} texts of {identity.prompts} prompts compared, {len(differences)} differ"
        )
    if differences:
        lines.append(str(differences[0]))
    for side, agreement in identity.agreements.items():
        names = results.sides[side].name, results.sides[0].name
        same = agreement.compared - agreement.differ
        lines.append("{} has the same text as {} {} of {} times".format(*names, same, agreement.compared))
    if results.failed:
        lines.append(f"{results.failed} requests failed; the table says where")
    return "\n".join(lines) or "no text was compared"
