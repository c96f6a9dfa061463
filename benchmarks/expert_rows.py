"""Measures what --ep-dispatch-dtype fp8 changes on one device: perplexity, accept length, equal texts.

    python benchmarks/expert_rows.py [--model-path DIR] [--output benchmarks/results]

Perplexity is measured on held-out code, from the log-probabilities of prompts. Texts and accept lengths are
from greedy completions with draft chains. The time of a native kernel to pack and to unpack a row is measured
too. The last line is JSON.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path

import torch
from last_line import tell

from nextn.bench.machine import this_machine
from nextn.bench.prompts import all_heldout_prompts
from nextn.config import EMBEDDED
from nextn.llm import LLM
from nextn.ops.cpu.library import library
from nextn.ops.fp8_rows import packed_bytes
from nextn.request import SamplingParams

WIDTH = 7168  # of DeepSeek-V3's rows


def measured(args: argparse.Namespace, dtype: str) -> tuple[dict[str, object], list[list[int]]]:
    """Returns a row of the table, and the token ids of the completions."""
    llm = LLM(args.model_path, ep_dispatch_dtype=dtype, speculative_num_steps=args.drafts)
    texts = all_heldout_prompts()[: args.prompts]
    prompts = [llm.tokenizer.encode(text)[:512] for text in texts]
    read = llm.generate(prompts, SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0))
    each = [one.logprob for done in read for one in done.prompt_logprobs or () if one is not None]
    greedy = SamplingParams(max_tokens=args.tokens, temperature=0, ignore_eos=True)
    done = llm.generate(prompts, greedy)
    steps = sum(c.spec.verify_steps for c in done)
    found = {
        "rows": dtype,
        "perplexity": round(math.exp(-sum(each) / len(each)), 4),
        "accept_length": round(sum(c.spec.committed for c in done) / steps, 4),
    }
    return found, [c.token_ids for c in done]


def microseconds() -> dict[str, float]:
    """Microseconds to pack and to unpack one row; the minimum over 200 calls."""
    kernels, row = library(), torch.randn(1, WIDTH).bfloat16()
    packed, found = torch.zeros(packed_bytes(WIDTH), dtype=torch.uint8), torch.zeros_like(row)
    calls = {
        "pack": lambda: kernels.nx_fp8_encode(row.data_ptr(), 1, WIDTH, packed.data_ptr()),
        "unpack": lambda: kernels.nx_fp8_decode(packed.data_ptr(), 1, WIDTH, found.data_ptr()),
    }
    best = {}
    for name, call in calls.items():
        times = []
        for _ in range(200):
            begin = time.perf_counter()
            call()
            times.append(time.perf_counter() - begin)
        best[name] = round(1e6 * min(times), 2)
    return best


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model-path", default=EMBEDDED)
    parser.add_argument("--prompts", type=int, default=24, help="held-out texts, read and completed")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of a completion")
    parser.add_argument("--drafts", type=int, default=2, help="drafts in a chain")
    parser.add_argument("--output", type=Path, help="folder for the result")
    args = parser.parse_args()
    (bf16, plain), (fp8, rounded) = measured(args, "bf16"), measured(args, "fp8")
    same = sum(a == b for a, b in zip(plain, rounded, strict=True))
    for row in (bf16, fp8):
        print(row)
    result = {
        "model": Path(args.model_path).name, "prompts": args.prompts, "tokens": args.tokens,
        "drafts": args.drafts, "table": [bf16, fp8], "equal_texts": same,
        "microseconds_of_a_row": {"width": WIDTH, **microseconds()}, "machine": this_machine().line,
    }  # fmt: skip
    tell("expert-rows", result, args.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
