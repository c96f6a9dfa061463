"""Compares the results of several load clients of one server with the server's own counts.

The speed of a machine varies, and a client that takes more CPU time slows the server down. So each result is
divided by the server's own of the same run, and these ratios must agree.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from clients import OURS, Figures


@dataclass(frozen=True)
class Run:
    said: Figures  # the client's results
    counted: Figures  # the server's counts


Rounds = Mapping[str, Sequence[Run]]  # by client; "nextn" is our own client

EXACT = ("requests", "input_tokens", "output_tokens")
ROWS = {  # a client's result -> (title, the server's count that it is divided by)
    "requests": ("requests", "requests"),
    "input_tokens": ("input tokens", "input_tokens"),
    "output_tokens": ("output tokens", "output_tokens"),
    "output_throughput": ("output tok/s", "output_throughput"),
    "e2e_ms": ("E2E ms", "e2e_ms"),
    "ttft_ms": ("TTFT ms", "ttft_ms"),
    "tpot_ms": ("TPOT ms", "tpot_ms"),
    "itl_chunk_ms": ("ITL ms, chunks", "step_ms"),
    "itl_token_ms": ("ITL ms, tokens", "tpot_ms"),
    "accept_length": ("accept length", "accept_length"),
}
FLOOR = 0.05  # allowed difference between clients, in addition to the noise
TOO_NOISY = 0.25  # with more noise there is no verdict


@dataclass(frozen=True)
class Row:
    """One result, by client. `ratios`: the client's result over the server's. `noise`: the largest deviation
    of a round's ratio from its client's median."""

    figure: str
    medians: dict[str, float]
    ratios: dict[str, float]
    noise: float

    @property
    def verdict(self) -> str:
        if self.figure in EXACT:
            return "same" if set(self.ratios.values()) == {1.0} and not self.noise else "differs"
        if self.noise > TOO_NOISY:
            return "too noisy"
        ours = self.ratios[OURS]
        agree = all(abs(ratio / ours - 1) <= FLOOR + self.noise for ratio in self.ratios.values())
        return "same" if agree else "differs"


def compare(rounds: Rounds) -> list[Row]:
    """A row for every result that our client and at least one other client have."""
    rows = []
    for figure, (_, counterpart) in ROWS.items():
        runs = {name: found for name, found in rounds.items() if figure in found[0].said}
        if OURS not in runs or len(runs) == 1 or counterpart not in runs[OURS][0].counted:
            continue
        by_round = {
            name: [run.said[figure] / run.counted[counterpart] for run in found]
            for name, found in runs.items()
        }
        ratios = {name: statistics.median(values) for name, values in by_round.items()}
        rows.append(
            Row(
                figure,
                {name: statistics.median(run.said[figure] for run in found) for name, found in runs.items()},
                ratios,
                max(abs(v / ratios[name] - 1) for name, values in by_round.items() for v in values),
            )
        )
    return rows


def table(rows: Sequence[Row], clients: Sequence[str]) -> str:
    """A Markdown table: each client's median and, in brackets, its ratio to the server's count."""
    heads = ["said (/ counted)", *clients, "noise", "verdict"]
    lines = ["| " + " | ".join(heads) + " |", "|---" + "|---:" * (len(heads) - 2) + "|---|"]
    for row in rows:
        cells = [ROWS[row.figure][0], *(cell(row, name) for name in clients)]
        lines.append("| " + " | ".join([*cells, f"{row.noise:.0%}", row.verdict]) + " |")
    return "\n".join(lines)


def cell(row: Row, name: str) -> str:
    if name not in row.medians:
        return "-"
    digits = 0 if row.figure in EXACT else 2 if row.figure == "accept_length" else 1
    return f"{row.medians[name]:.{digits}f} ({row.ratios[name]:.2f})"
