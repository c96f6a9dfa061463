"""Measures the cost of constrained decoding, without and with MTP, on the embedded model.

    python benchmarks/structured_output.py [--drafts 0,2] [--requests 1,8] [--output benchmarks/results]

There are three kinds of texts: without a constraint; with a regular expression that allows any text, so that
the texts are the same but the grammar's work is done; with a JSON schema. The settings take turns in every
round, and each setting's best round is reported, because other work on the machine can only make a round
slower. The texts must not depend on drafts. The last line is JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import importlib.util
import json
import sys
import time
from pathlib import Path

from last_line import tell

from nextn.bench.machine import this_machine
from nextn.bench.prompts import heldout_prompts
from nextn.config import EMBEDDED
from nextn.constraint import Constraint
from nextn.llm import LLM
from nextn.request import SamplingParams
from nextn.stats import SpecStats

RECORD = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z_]{3,16}$"},
        "size": {"type": "integer", "minimum": 0, "maximum": 99999},
        "kind": {"enum": ["function", "class", "module", "variable"]},
        "public": {"type": "boolean"},
    },
    "required": ["name", "size", "kind", "public"],
    "additionalProperties": False,
}
SCHEMA = {"type": "array", "items": RECORD, "minItems": 100}
CASES: dict[str, Constraint | None] = {
    "free": None,
    "any text": Constraint("regex", r"(.|\n)*"),
    "JSON schema": Constraint("json_schema", json.dumps(SCHEMA)),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model-path", default=EMBEDDED)
    parser.add_argument("--drafts", default="0,2")
    parser.add_argument("--requests", default="1,8")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--output", type=Path, help="folder for the result")
    args = parser.parse_args()
    backends = [b for b in ("llguidance", "xgrammar") if importlib.util.find_spec(b)]
    engines = {
        (backend, drafts): LLM(
            args.model_path,
            speculative_num_steps=drafts,
            grammar_backend=backend,
        )
        for backend in backends
        for drafts in map(int, args.drafts.split(","))
    }
    best: dict[tuple[str, int, str, int], tuple[float, float]] = {}
    texts: dict[tuple[str, str, int], list[str]] = {}
    for turn in range(args.rounds + 1):  # round 0 is warm-up
        for (backend, drafts), llm in engines.items():
            for name, constraint in CASES.items():
                for requests in map(int, args.requests.split(",")):
                    rate, spec, found = measure(llm, requests, args.max_tokens, constraint)
                    key = (backend, drafts, name, requests)
                    same = texts.setdefault((backend, name, requests), found)
                    assert found == same, f"{key}: the texts depend on drafts"
                    if turn and rate > best.get(key, (0.0, 0.0))[0]:
                        best[key] = rate, spec.accept_length
    rows = []
    print("| library | drafts | text | requests | tokens/s | accept length |\n|---|---|---|---|---|---|")
    for (backend, drafts, name, requests), (rate, length) in best.items():
        print(f"| {backend} | {drafts} | {name} | {requests} | {rate:.0f} | {length:.2f} |")
        rows.append(
            {"library": backend, "drafts": drafts, "text": name, "requests": requests,
             "tokens_per_second": round(rate, 1), "accept_length": round(length, 3)}
        )  # fmt: skip
    result = {
        "model": args.model_path, "max_tokens": args.max_tokens, "rounds": args.rounds,
        "machine": dataclasses.asdict(this_machine()), "date": str(datetime.date.today()), "rows": rows,
    }  # fmt: skip
    tell("structured-output", result, args.output)
    return 0


def measure(
    llm: LLM, requests: int, max_tokens: int, constraint: Constraint | None
) -> tuple[float, SpecStats, list[str]]:
    """Completes `requests` prompts greedily. Returns tokens per second, the speculation's counts, and the
    texts."""
    params = SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True, constraint=constraint)
    begin = time.perf_counter()
    done = llm.generate(heldout_prompts(requests), params)
    seconds = time.perf_counter() - begin
    spec = SpecStats()
    for completion in done:
        spec.merge(completion.spec)
    return sum(len(c.token_ids) for c in done) / seconds, spec, [c.text for c in done]


if __name__ == "__main__":
    sys.exit(main())
