"""Prints the demo's results: a table, conclusions, and commands to run next."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from nextn.bench.prompts import EXAMPLE, questions
from nextn.bench.report import heading, notes
from nextn.bench.results import Point, Results
from nextn.config import EMBEDDED
from nextn.server_config import ServerConfig

NARROW = 90  # with fewer columns, TTFT is left out
DEPTHS = 4  # draft depths in the table; results.json has all
DEPTH_COLOURS = ("blue", "cyan", "green", "magenta")
BARS = "▁▂▃▄▅▆▇█"
EVEN = 0.02  # a ratio this close to 1 gets no colour


def print_results(results: Results, out: Console) -> None:
    """Prints the heading, the table and the conclusions. The table has at most 100 columns."""
    for line in heading(results):
        out.print(line, soft_wrap=True)
    out.print(table(results, out))
    for line in verdict(results):
        out.print(line, soft_wrap=True)


def table(results: Results, out: Console) -> Table:
    made = Table(
        box=box.HORIZONTALS, padding=(0, 1, 0, 0), pad_edge=False, header_style="", border_style="dim"
    )
    wide = out.width >= NARROW
    names = ["at\nonce", "tok/s\nno MTP", "\nMTP", "\nratio", *(["TTFT ms\nno MTP", "\nMTP"] * wide)]
    for name in [*names, "TPOT ms\nno MTP", "\nMTP", "accept\nlength"]:
        made.add_column(name, justify="right", no_wrap=True)
    made.add_column(f"drafts accepted\nby depth: 1 to {DEPTHS}", no_wrap=True)
    for p in results.points:
        sides = (p.without, p.with_mtp)
        made.add_row(
            f"{p.concurrency}",
            *(f"{side.output_throughput:.1f}" for side in sides),
            Text(f"{p.ratio:.2f}x", colour_of(p.ratio)),
            *(f"{side.mean_ttft_ms:.0f}" for side in sides if wide),
            *(f"{side.mean_tpot_ms:.1f}" for side in sides),
            f"{p.spec.accept_length:.2f}",
            accepted(p, out.options.ascii_only),
        )
    return made


def colour_of(ratio: float) -> str:
    return "green" if ratio > 1 + EVEN else "red" if ratio < 1 - EVEN else ""


def accepted(point: Point, ascii_only: bool) -> Text:
    """A bar and the accepted share for each of the first depths. If automatic depth made no drafts: the gain
    that drafts would have."""
    if (auto := point.no_drafts) is not None:
        return Text(f"none: would be {auto.gain:.2f}x", "yellow")
    rates = list(zip(point.spec.accept_rates, DEPTH_COLOURS, strict=False))
    bars = [(BARS[round(rate * (len(BARS) - 1))], colour) for rate, colour in rates if not ascii_only]
    shares = [(f" {rate:.0%}", colour) for rate, colour in rates]
    return Text.assemble(*bars, *shares)


def verdict(results: Results) -> Iterator[str]:
    """Yields the conclusions as lines: whether the texts are equal, the ratios, the loads at which automatic
    depth made no drafts, why a load was slower with MTP, and the first difference of texts."""
    texts = results.texts
    ratios = ", ".join(f"{p.ratio:.2f}x at {p.concurrency}" for p in results.points)
    yield f"{texts.compared} texts of {texts.prompts} prompts compared, {len(texts.differences)} differ"
    yield f"tok/s with MTP over without: {ratios} requests at once"
    yield from notes(results)
    if slow := [p for p in results.points if p.ratio < 0.995]:
        yield from (f"{p.ratio:.2f}x at {p.concurrency}: {slower(p)}" for p in slow)
        longest = max(
            found.seconds for p in slow for side in (p.without, p.with_mtp) for found in side.rounds
        )
        yield f"(a round took at most {longest:.1f} s; ratios of loads this short vary by several percent)"
    if texts.differences:
        yield str(texts.differences[0])


def slower(point: Point) -> str:
    """Says why a load had fewer tokens/s with MTP."""
    before, after = point.without, point.with_mtp
    if point.no_drafts is not None:
        return "both servers decode without drafts at this load, except in trials"
    if after.mean_tpot_ms < before.mean_tpot_ms:
        tpot = f"TPOT {before.mean_tpot_ms:.1f} -> {after.mean_tpot_ms:.1f} ms"
        ttft = f"TTFT {before.mean_ttft_ms:.0f} -> {after.mean_ttft_ms:.0f} ms"
        if after.mean_ttft_ms > before.mean_ttft_ms:
            return f"decoding is faster ({tpot}), prompts are slower ({ttft})"
        return f"neither decoding ({tpot}) nor prompts ({ttft}) took longer: fewer requests ran at once"
    length = point.spec.accept_length
    cost = length * after.mean_tpot_ms / (before.mean_tpot_ms or 1e-9)
    fixed = "" if point.auto is not None else "; --speculative-num-steps auto drafts only when that is faster"
    return f"a step with drafts made {length:.2f} tokens and took {cost:.2f} times as long{fixed}"


def next_commands(
    model_path: str, model: str, environment: Mapping[str, str], chat: bool = False
) -> list[str]:
    """Commands to run after the demo, from the same folder. environment: variables of this process. chat: the
    model answers questions."""
    commands = []
    if sys.prefix != sys.base_prefix and environment.get("VIRTUAL_ENV") != sys.prefix:
        activate = Path(sys.prefix) / "bin" / "activate"
        relative = os.path.relpath(activate)
        commands.append(f". {shlex.quote(str(activate) if relative.startswith('..') else relative)}")
    options = "" if model_path == EMBEDDED else f" --model-path {shlex.quote(model_path)}"
    asked: dict[str, object] = {"prompt": EXAMPLE}
    if chat:
        asked = {"messages": [{"role": "user", "content": questions()[0]}]}
    body = json.dumps({"model": model, **asked, "max_tokens": 64, "temperature": 0})
    path = "chat/completions" if chat else "completions"
    url = f"http://{ServerConfig.host}:{ServerConfig.port}/v1/{path}"
    return [
        *commands,
        f"nextn serve{options}",
        f"curl {url} -d {shlex.quote(body)}",
    ]
