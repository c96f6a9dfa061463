"""Where the time of a decode step goes on a CUDA device: how long a step takes, how long its kernels run, and
which of them longest.

    python benchmarks/cuda_step.py [--model-path DIR] [--drafts 0,3] [--requests 1,32] [--output benchmarks/results]

An engine for each number of drafts. Its steps are timed first, with nothing else; then some are run under
torch's profiler, which says what every kernel took. `busy` is the time of all kernels of a step, one after another; `one
reading` is how long the device needs to read what one token needs of the weights, at the speed of a copy of
1 GiB. The last line is JSON.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from last_line import tell
from synthetic.sizes import bytes_per_token

from nextn.bench.machine import slug
from nextn.bench.offline import tokenizer_of
from nextn.bench.prompts import heldout_prompts
from nextn.config import EngineConfig, model_folder
from nextn.engine.engine import Engine
from nextn.families.config import ModelConfig
from nextn.request import Request, SamplingParams

PROMPT = 100  # tokens of each request, at most
WARM, TIMED, PROFILED = 40, 100, 20  # steps
LISTED = 14  # kernels


def copy_speed() -> float:
    """Bytes per second, read and written, of a copy of 1 GiB."""
    source = torch.zeros(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(3):
        target.copy_(source)
    start.record()
    for _ in range(10):
        target.copy_(source)
    end.record()
    end.synchronize()
    return 10 * 2 * source.numel() / (start.elapsed_time(end) / 1e3)


def tokens_of(engine: Engine, steps: int) -> int:
    return sum(len(out.tokens) for _ in range(steps) for out in engine.step())


def kernels_of(engine: Engine) -> dict[str, tuple[int, float]]:
    """Name -> how often it ran and for how many microseconds in all, in PROFILED steps."""
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        tokens_of(engine, PROFILED)
        torch.cuda.synchronize()
    kernels: dict[str, tuple[int, float]] = defaultdict(lambda: (0, 0.0))
    for event in found.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            count, took = kernels[event.name]
            kernels[event.name] = count + 1, took + event.time_range.elapsed_us()
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
            {"kernel": name, "runs": count / PROFILED, "us": us / PROFILED} for name, (count, us) in listed[:LISTED]
        ],
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model-path", default="nextn-tiny", help="checkpoint folder (default: %(default)s)")
    parser.add_argument("--load-format", default="auto", choices=("auto", "dummy"))
    parser.add_argument("--drafts", default="0,3", help="default: %(default)s")
    parser.add_argument("--requests", default="1,32", help="at once (default: %(default)s)")
    parser.add_argument("--output", type=Path, help="folder for the result")
    args = parser.parse_args()
    counts = [int(n) for n in args.requests.split(",")]
    speed = copy_speed()
    weights = bytes_per_token(ModelConfig.from_folder(model_folder(args.model_path)))
    floor = weights / speed
    device = torch.cuda.get_device_name()
    print(
        f"{device}: a copy moves {speed / 1e9:,.0f} GB/s; one reading of {weights / 1e6:,.0f} MB: {floor * 1e3:.3f} ms"
    )
    found = []
    for drafts in map(int, args.drafts.split(",")):
        engine = Engine(
            EngineConfig(
                model_path=args.model_path, load_format=args.load_format, device="cuda", kv_cache_tokens=max(counts) * 2048,
                speculative_num_steps=drafts, disable_radix_cache=True, max_running_requests=max(counts),
            )
        )  # fmt: skip
        tokenizer = tokenizer_of(engine.config)
        assert tokenizer is not None
        prompts = [tokenizer.encode(text)[:PROMPT] for text in heldout_prompts(max(counts))]
        for count in counts:
            one = {"drafts": drafts} | measured(engine, prompts[:count], f"{drafts}-{count}")
            found.append(one)
            print(
                f"{count} requests, {drafts} drafts: a step {one['step'] * 1e3:.3f} ms, {one['tokens']:.2f} tokens "
                f"({one['tokens'] / one['step']:,.0f}/s), {one['kernels']:.0f} kernels busy for "
                f"{one['busy'] * 1e3:.3f} ms; one reading over the step: {floor / one['step']:.0%}"
            )
            for line in one["longest"]:
                print(f"    {line['us']:8.1f} us {line['runs']:6.1f} x {line['kernel'][:90]}", flush=True)
        del engine
        torch.cuda.empty_cache()
    result = {
        "device": device, "torch": torch.__version__, "model": Path(args.model_path).name, "bytes_per_s": speed,
        "bytes_per_token": weights, "steps": found,
    }  # fmt: skip
    tell(f"cuda-step_{slug(device)}_{slug(Path(args.model_path).name)}", result, args.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
