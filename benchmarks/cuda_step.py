"""Measures a decode step on a CUDA device: the step's time, the kernels' time, and the longest kernels.

    python benchmarks/cuda_step.py [--model-path DIR] [--drafts 0,3] [--requests 1,32]
    python benchmarks/cuda_step.py --size glm-4.7-flash

Each number of drafts has its own engine. First its steps are timed without a profiler. Then some steps run
under torch's profiler, which reports when every kernel began and ended. A kernel can begin while others still
run, so its time counts from the end of the kernels before it, or from its own beginning if that is later.
`busy` is the sum of these times. `one reading` is the time to read the weights that one token needs, at the
speed of a copy of 1 GiB. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from cuda_ops import bandwidth
from last_line import tell
from source_trees import numbers
from synthetic.sizes import PRESETS, bytes_per_token

from nextn.bench.machine import slug
from nextn.bench.offline import tokenizer_of
from nextn.bench.prompts import heldout_prompts
from nextn.config import EngineConfig, model_folder
from nextn.engine.engine import Engine
from nextn.families.config import ModelConfig
from nextn.request import Request, SamplingParams

PROMPT = 100  # tokens of each request, at most
WARM, TIMED, PROFILED = 40, 100, 20  # steps
LISTED = 14  # kernels in the list


def tokens_of(engine: Engine, steps: int) -> int:
    return sum(len(out.tokens) for _ in range(steps) for out in engine.step())


def kernels_of(engine: Engine) -> dict[str, tuple[int, float]]:
    """Kernel -> (number of runs, total microseconds) in PROFILED steps."""
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        tokens_of(engine, PROFILED)
        torch.cuda.synchronize()
    kernels: dict[str, tuple[int, float]] = defaultdict(lambda: (0, 0.0))
    events = [e for e in found.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    ended = 0.0
    for event in sorted(events, key=lambda e: e.time_range.start):
        count, took = kernels[event.name]
        begin, end = event.time_range.start, event.time_range.end
        kernels[event.name] = count + 1, took + max(0.0, end - max(begin, ended))
        ended = max(ended, end)
    return dict(kernels)


def measured(engine: Engine, prompts: list[list[int]], tag: str) -> dict[str, Any]:
    steps = WARM + TIMED + PROFILED
    params = SamplingParams(max_tokens=9 * steps, temperature=0, ignore_eos=True)
    for i, prompt in enumerate(prompts):
        engine.add(Request(f"{tag}-{i}", list(prompt), params))
    tokens_of(engine, WARM)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    tokens = tokens_of(engine, TIMED)
    torch.cuda.synchronize()
    took = (time.perf_counter() - begin) / TIMED
    kernels = kernels_of(engine)
    for i in range(len(prompts)):
        engine.abort(f"{tag}-{i}")
    while engine.must_step():
        engine.step()
    listed = sorted(kernels.items(), key=lambda item: -item[1][1])
    return {
        "requests": len(prompts), "step": took, "tokens": tokens / TIMED,
        "kernels": sum(count for count, _ in kernels.values()) / PROFILED,
        "busy": sum(us for _, us in kernels.values()) / PROFILED / 1e6,
        "longest": [
            {"kernel": name, "runs": count / PROFILED, "us": us / PROFILED}
            for name, (count, us) in listed[:LISTED]
        ],
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model-path", default="nextn-tiny", help="checkpoint folder (default: %(default)s)")
    parser.add_argument("--size", choices=sorted(PRESETS), help="a model of this size with random weights")
    parser.add_argument("--drafts", default="0,3", help="default: %(default)s")
    parser.add_argument("--requests", default="1,32", help="concurrent requests (default: %(default)s)")
    parser.add_argument("--output", type=Path, help="folder for the result")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        model = args.model_path
        if args.size is not None:
            model = str(Path(made, args.size))
            Path(model).mkdir()
            Path(model, "config.json").write_text(json.dumps(PRESETS[args.size].config_json()))
        result = compare(model, args.size is not None, numbers(args.drafts), numbers(args.requests))
    tell(f"cuda-step_{slug(result['device'])}_{slug(Path(model).name)}", result, args.output)
    return 0


def compare(model: str, random: bool, drafts: list[int], counts: list[int]) -> dict[str, Any]:
    """Measures each number of drafts and requests. Prints a line for each, and the longest kernels below
    it."""
    speed, device = bandwidth(), torch.cuda.get_device_name()
    weights = bytes_per_token(ModelConfig.from_folder(model_folder(model)))
    floor = weights / speed
    print(f"{device}: a copy moves {speed / 1e9:,.0f} GB/s")
    print(f"one reading of {weights / 1e6:,.0f} MB takes {floor * 1e3:.3f} ms", flush=True)
    found = []
    for number in drafts:
        config = EngineConfig(
            model_path=model, load_format="dummy" if random else "auto", device="cuda",
            kv_cache_tokens=max(counts) * 2048, speculative_num_steps=number, disable_radix_cache=True,
            max_running_requests=max(counts),
        )  # fmt: skip
        engine = Engine(config)
        prompts = prompts_of(config, max(counts), engine.vocab_size)
        for count in counts:
            one = {"drafts": number} | measured(engine, prompts[:count], f"{number}-{count}")
            found.append(one)
            per_second = one["tokens"] / one["step"]
            print(
                f"{count} requests, {number} drafts: a step {one['step'] * 1e3:.3f} ms, {one['tokens']:.2f} "
                f"tokens ({per_second:,.0f}/s), {one['kernels']:.0f} kernels, busy for "
                f"{one['busy'] * 1e3:.3f} ms; one reading over the step: {floor / one['step']:.0%}"
            )
            for line in one["longest"]:
                print(f"    {line['us']:8.1f} us {line['runs']:6.1f} x {line['kernel'][:80]}", flush=True)
        del engine
        torch.cuda.empty_cache()
    return {
        "device": device, "torch": torch.__version__, "model": Path(model).name, "bytes_per_s": speed,
        "bytes_per_token": weights, "steps": found,
    }  # fmt: skip


def prompts_of(config: EngineConfig, count: int, vocabulary: int) -> list[list[int]]:
    """Prompts of held-out code, or of arbitrary tokens if the model has no tokenizer."""
    tokenizer = tokenizer_of(config)
    if tokenizer is None:
        return [[(7 * i + 5 * n) % vocabulary for i in range(PROMPT)] for n in range(count)]
    return [tokenizer.encode(text)[:PROMPT] for text in heldout_prompts(count)]


if __name__ == "__main__":
    sys.exit(main())
