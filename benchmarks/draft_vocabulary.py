"""Measures speed and accept length with smaller draft vocabularies (FR-Spec, --speculative-token-map).

    python benchmarks/draft_vocabulary.py [--model-path DIR] [--corpus FILE ...] [--output benchmarks/results]

The engines are in one process and take turns. By default the corpus is the source of Python's standard
library, which was in the embedded model's training data. The prompts are held-out code, one request at a
time, greedy. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

from last_line import tell

from nextn.bench.machine import this_machine
from nextn.bench.prompts import all_heldout_prompts
from nextn.config import EMBEDDED, model_folder
from nextn.llm import LLM
from nextn.request import SamplingParams
from nextn.tokenizer import Tokenizer
from nextn.tokenizer.frequency import frequent_tokens


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model-path", default=EMBEDDED)
    parser.add_argument("--corpus", type=Path, nargs="+")
    parser.add_argument("--shares", default="0.125,0.25,0.5", help="shares of the vocabulary")
    parser.add_argument("--drafts", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, help="folder for the result")
    args = parser.parse_args()
    tokenizer = Tokenizer.from_folder(model_folder(args.model_path))
    files = args.corpus or sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    texts = [file.read_text(encoding="utf-8", errors="replace") for file in files]
    sizes = [round(float(share) * tokenizer.vocab_size) for share in args.shares.split(",")]
    engines: dict[int, LLM] = {}
    covered = {tokenizer.vocab_size: 1.0}
    with tempfile.TemporaryDirectory() as folder:
        for size in sizes:
            found = frequent_tokens(tokenizer, texts, size)
            path = Path(folder) / f"{size}.json"
            path.write_text(json.dumps(found.ids))
            covered[size] = found.covered
            engines[size] = LLM(
                args.model_path, speculative_num_steps=args.drafts, speculative_token_map=str(path)
            )
    engines[tokenizer.vocab_size] = LLM(args.model_path, speculative_num_steps=args.drafts)
    prompts = all_heldout_prompts()[: args.prompts]
    params = SamplingParams(max_tokens=96, temperature=0, ignore_eos=True)
    seconds: dict[int, list[float]] = {size: [] for size in engines}
    texts_of: dict[int, list[str]] = {}
    length: dict[int, float] = {}
    for number in range(args.rounds + 1):  # round 0 is warm-up
        for size, llm in engines.items():
            begin = time.perf_counter()
            done = [llm.generate(prompt, params)[0] for prompt in prompts]
            if number:
                seconds[size].append(time.perf_counter() - begin)
            texts_of[size] = [c.text for c in done]
            length[size] = sum(c.spec.committed for c in done) / sum(c.spec.verify_steps for c in done)
    whole = seconds[tokenizer.vocab_size]
    rows = []
    print(f"{'tokens':>8} {'of the corpus':>14} {'accept length':>14} {'speed':>7}")
    for size in engines:
        ratio = statistics.median(a / b for a, b in zip(whole, seconds[size], strict=True))
        rows.append(
            {"tokens": size, "covered": round(covered[size], 4), "accept_length": round(length[size], 4),
             "speed": round(ratio, 4), "same_texts": texts_of[size] == texts_of[tokenizer.vocab_size]}
        )  # fmt: skip
        print(f"{size:>8} {covered[size]:>14.1%} {length[size]:>14.3f} {ratio:>6.2f}x")
    machine = this_machine()
    model = Path(args.model_path).name
    result = {
        "model": model,
        "drafts": args.drafts,
        "rows": rows,
        "machine": machine.line,
    }
    tell(f"draft-vocabulary-{model}", result, args.output)
    return 0 if all(row["same_texts"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
