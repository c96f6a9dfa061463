"""The results of the comparison, as one JSON object and as a table for people."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from figures import Agreement, agreement, best, compare_acceptance
from measure import Found
from variants import OURS, Variant

from nextn.bench.machine import Machine, slug

CASES = ("prefill", "prefill2048", "single", "batch8", "batch32")
HEADS = dict(zip(CASES, ("prompt", "of 2048", "single", "batch 8", "batch 32"), strict=True))


def report(found: Mapping[Variant, Found], reference: Variant, ends: frozenset[int]) -> dict[str, Any]:
    """The record: all engines, our best against the best peer, and our acceptance against each peer's."""
    done = {v: f for v, f in found.items() if f.error is None}
    agreements = (
        {v: _agreement(done[reference], f, ends) for v, f in done.items()} if reference in done else {}
    )
    counted = {v: f for v, f in done.items() if v in agreements and agreements[v].comparable}
    return {
        "engines": {str(v): _engine(f, agreements.get(v)) for v, f in found.items()},
        "reference": str(reference),
        "best": _best(counted),
        "acceptance": _acceptance(counted),
    }


def _agreement(reference: Found, found: Found, ends: frozenset[int]) -> Agreement:
    names = [name for name in CASES if not name.startswith("prefill") and name in reference.texts]
    return agreement(
        [text for name in names for text in reference.texts[name]],
        [text for name in names for text in found.texts[name]],
        ends,
    )


def _engine(found: Found, agreed: Agreement | None) -> dict[str, Any]:
    if found.error is not None:
        # The whole message was printed when the error occurred. Its first and last lines are kept.
        first, *more = found.error.splitlines()
        return {"engine": found.engine, "error": f"{first}: {more[-1]}" if more else first}
    return {
        "engine": found.engine,
        "settings": found.settings,
        "tok_s": {name: found.median(name) for name in CASES},
        "rounds": found.speeds,
        "idle": found.idle,
        "spec": dataclasses.asdict(found.spec) if found.spec else None,
        "agreement": dataclasses.asdict(agreed) if agreed else None,
        "comparable": agreed.comparable if agreed else None,
    }


def _best(found: Mapping[Variant, Found]) -> dict[str, Any]:
    """For each measure, the best of both sides. The measures are all cases; decoding cases are also compared
    only without MTP and only with MTP."""
    measures = {name: (name, list(found)) for name in CASES}
    for name in CASES:
        if not name.startswith("prefill"):
            measures[f"{name}_without_mtp"] = (name, [v for v in found if not v.drafts])
            measures[f"{name}_with_mtp"] = (name, [v for v in found if v.drafts])
    answer: dict[str, Any] = {}
    for measure, (case, variants) in measures.items():
        speeds = {str(v): speed for v in variants if (speed := found[v].median(case)) is not None}
        pair = best(speeds, {str(v): v.engine == OURS for v in variants})
        if pair:
            answer[measure] = {**dataclasses.asdict(pair), "ratio": pair.ratio}
    return answer


def _acceptance(found: Mapping[Variant, Found]) -> list[dict[str, Any]]:
    """Compares our acceptance with every peer that counts by depth, with the same number of drafts and, if
    possible, in the same number format."""
    answer: list[dict[str, Any]] = []
    for peer, theirs in found.items():
        mine = [v for v in found if v.engine == OURS and v.drafts == peer.drafts and found[v].spec]
        if peer.engine == OURS or not peer.drafts or theirs.spec is None or not mine:
            continue
        ours = min(mine, key=lambda v: v.dtype != peer.dtype)
        ours_spec = found[ours].spec
        assert ours_spec is not None
        depths = compare_acceptance(ours_spec, theirs.spec)
        if depths:
            answer.append(
                {
                    "ours": str(ours),
                    "peer": str(peer),
                    "depths": [dataclasses.asdict(d) for d in depths],
                    "agrees": all(d.agrees for d in depths),
                }
            )
    return answer


def table(result: Mapping[str, Any]) -> list[str]:
    shown = [case for case in CASES if case in result.get("cases", CASES)]
    heads = "".join(f"{HEADS[case]:>9}" for case in shown)
    lines = [f"{'':28}{heads}   texts as {result['reference']}"]
    for name, engine in result["engines"].items():
        if "error" in engine:
            lines.append(f"{name:28}failed: {engine['error']}")
            continue
        tok_s = [engine["tok_s"][case] for case in shown]
        speeds = "".join(f"{'' if speed is None else f'{speed:.0f}':>9}" for speed in tok_s)
        agreed = engine["agreement"]
        note = "unknown: the reference is missing"
        if agreed:
            note = f"{agreed['equal']:4.0%} of prompts, {agreed['tokens']:4.0%} of tokens"
            note += "" if engine["comparable"] else ": not comparable"
        if engine["spec"]:
            kept, made = sum(engine["spec"]["accepted"]), sum(engine["spec"]["proposed"])
            note += f"; {kept} of {made} drafts held"
        lines.append(f"{name:28}{speeds}   {note}")
    lines += at_most(result)
    lines += [f"{name} is missing; install it with: {how}" for name, how in result.get("missing", {}).items()]
    for measure, pair in result["best"].items():
        lines.append(
            f"{measure:20} {pair['ratio']:5.2f} x the best peer "
            f"({pair['ours']} {pair['our_speed']:.0f}, {pair['peer']} {pair['peer_speed']:.0f} tok/s)"
        )
    for pair in result["acceptance"]:
        for d in pair["depths"]:
            verdict = "agrees" if d["agrees"] else "DIFFERS"
            lines.append(
                f"acceptance at depth {d['depth']}: {pair['ours']} {d['ours']:.3f}, {pair['peer']} "
                f"{d['theirs']:.3f}, standard error {d['error']:.3f}: {verdict}"
            )
    if not all(e.get("idle", True) for e in result["engines"].values()):
        lines.append("the machine was not idle: these figures are a trial")
    return lines


def read_shares(found: Mapping[Variant, Found], most: Mapping[str, float]) -> dict[str, float]:
    """For each variant without MTP: its share of the maximum speed of one text. most: this maximum by number
    format."""
    shares = {}
    for variant, one in found.items():
        speed = one.median("single")
        if not variant.drafts and speed is not None and variant.dtype in most:
            shares[str(variant)] = speed / most[variant.dtype]
    return shares


def at_most(result: Mapping[str, Any]) -> list[str]:
    """Lines with the maximum speed of one text without MTP, and each variant's share of it."""
    found = result.get("limits")
    if not found:
        return []
    lines = []
    for dtype, most in found["tok_s"].items():
        reached = {name: s for name, s in found["shares"].items() if name.split(":")[1] == dtype}
        if reached:
            shares = ", ".join(f"{name} {share:.0%}" for name, share in reached.items())
            lines.append(
                f"reading {found['bytes_per_token'][dtype] / 1e6:.0f} MB a token in {dtype} at "
                f"{found['read_gb_s']:.1f} GB/s allows {most:.0f} tok/s: {shares}"
            )
    return lines


def file_name(model: str, machine: Machine, date: str) -> str:
    """The name of the result file: theme_hardware_date. The model is part of the theme."""
    return f"peers-{slug(model)}_{machine.slug}_{date}.json"


def rounded(value: Any) -> Any:
    """A copy with every float rounded: to four decimal places below 100, otherwise to one."""
    if isinstance(value, float):
        return round(value, 4) if abs(value) < 100 else round(value, 1)
    if isinstance(value, Mapping):
        return {k: rounded(v) for k, v in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [rounded(v) for v in value]
    return value
