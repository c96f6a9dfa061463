"""`nextn bench offline`: a load on an engine in this process. All requests arrive at the start.

The printed block is SGLang's bench_offline_throughput's, followed by the results of speculation.
"""

from __future__ import annotations

import copy
import json
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nextn
from nextn.bench import datasets
from nextn.bench.block import SIMULATED, WIDTH, heading, line
from nextn.bench.datasets import Sample, load_samples
from nextn.bench.progress import Progress
from nextn.bench.results import rounded
from nextn.config import EngineConfig, model_folder
from nextn.engine.engine import Engine
from nextn.request import Request, SamplingParams
from nextn.stats import SpecStats
from nextn.tokenizer import Tokenizer
from nextn.trace import TRACE
from nextn.trace_file import check_folder, file_name, write

WARMUP_TOKENS = 32  # at most, of the warm-up completion
LAST_STEPS = 40  # steps that "last generation throughput" covers; the server's log covers as many


@dataclass(frozen=True)
class Settings:
    config: EngineConfig
    dataset: datasets.Options
    ignore_eos: bool = True
    warmup: bool = True
    output_file: Path | None = None
    bar: bool = False
    profile_dir: Path | None = None
    profile_steps: int | None = None  # None: all


@dataclass
class Run:
    """The result of a load. seconds: from the start of the first step to the end of the last."""

    requests: int = 0
    seconds: float = 0.0
    input_tokens: int = 0
    cached_tokens: int = 0  # input tokens that were in the prefix cache
    output_tokens: int = 0
    last_throughput: float = 0.0  # output tokens/s over the last LAST_STEPS steps that output tokens
    spec: SpecStats = field(default_factory=SpecStats)

    @property
    def drafted(self) -> bool:
        return any(self.spec.proposed)

    def per_second(self, count: int) -> float:
        return count / self.seconds


def run_offline(settings: Settings) -> int:
    """Runs the load and prints the block; if stdout is not a terminal, prints the record as the last line.
    Returns 0. Raises ValueError and OSError for errors that the user can fix."""
    if settings.profile_dir is not None:
        check_folder(settings.profile_dir)
    engine = Engine(settings.config)
    tokenizer = tokenizer_of(settings.config)
    samples = load_samples(settings.dataset, tokenizer)
    prompts = [token_ids(sample, tokenizer) for sample in samples]
    if settings.warmup:
        # The prompt is reversed, so that no prompt of the load gets into the prefix cache.
        first, length = prompts[0][::-1], min(samples[0].output_len, WARMUP_TOKENS)
        generate(engine, [first], [length], True, Progress(1, False))
        engine.flush_cache()
    lengths = [sample.output_len for sample in samples]
    if settings.profile_dir is not None:
        TRACE.start("engine", settings.profile_steps)
    with Progress(len(prompts), settings.bar) as progress:
        found = generate(engine, prompts, lengths, settings.ignore_eos, progress)
    print(offline_block(found))
    if settings.profile_dir is not None:
        path = settings.profile_dir / file_name()
        write(path, [TRACE.take()], {"nextn_version": nextn.__version__, "model": settings.config.model_path})
        print(f"trace: {path}", file=sys.stderr)
    record = json.dumps(rounded(offline_record(found, engine, settings)))
    if settings.output_file is not None:
        with settings.output_file.open("a", encoding="utf-8") as out:
            out.write(record + "\n")
    if not sys.stdout.isatty():  # for scripts
        print(record)
    return 0


def generate(
    engine: Engine,
    prompts: Sequence[list[int]],
    lengths: Sequence[int],
    ignore_eos: bool,
    progress: Progress,
) -> Run:
    """Generates for all prompts at once, greedily. Raises ValueError, which names the prompt, if the engine
    refuses one."""
    found = Run(input_tokens=sum(map(len, prompts)))
    before = copy.deepcopy(engine.stats().spec)
    for i, (prompt, length) in enumerate(zip(prompts, lengths, strict=True)):
        params = SamplingParams(max_tokens=length, temperature=0, ignore_eos=ignore_eos)
        try:
            engine.add(Request(f"offline-{i}", prompt, params))
        except ValueError as e:
            for earlier in range(i):
                engine.abort(f"offline-{earlier}")
            raise ValueError(f"prompt {i} of the dataset: {e}") from e
    begin = now = time.perf_counter()
    last = deque([(begin, 0)], maxlen=LAST_STEPS + 1)  # (end, tokens) of steps
    while engine.has_work():
        outputs = engine.step()
        now = time.perf_counter()
        tokens = sum(len(out.tokens) for out in outputs)
        found.output_tokens += tokens
        if tokens:
            last.append((now, tokens))
        for out in outputs:
            if out.finish_reason is not None:
                found.requests += 1
                found.cached_tokens += out.cached_tokens
                progress.advance()
    found.seconds = now - begin
    found.last_throughput = sum(tokens for _, tokens in list(last)[1:]) / (now - last[0][0])
    found.spec = engine.stats().spec.since(before)
    return found


def tokenizer_of(config: EngineConfig) -> Tokenizer | None:
    folder = model_folder(config.model_path)
    return Tokenizer.from_folder(folder) if (folder / "tokenizer.json").exists() else None


def token_ids(sample: Sample, tokenizer: Tokenizer | None) -> list[int]:
    if not isinstance(sample.prompt, str):
        return list(sample.prompt)
    if tokenizer is None:
        raise ValueError("the dataset is text and the model has no tokenizer.json; give prompts of token ids")
    return tokenizer.encode(sample.prompt)


def offline_block(found: Run) -> str:
    """Makes the block, without a final line break."""
    lines = [
        heading(" Offline Throughput Benchmark Result ", "="),
        line("Backend:", "nextn"),
        line("Successful requests:", found.requests),
        line("Benchmark duration (s):", found.seconds),
        line("Total input tokens:", found.input_tokens),
        line("Total generated tokens:", found.output_tokens),
        line("Last generation throughput (tok/s):", found.last_throughput),
        line("Request throughput (req/s):", found.per_second(found.requests)),
        line("Input token throughput (tok/s):", found.per_second(found.input_tokens)),
        line("Output token throughput (tok/s):", found.per_second(found.output_tokens)),
        line("Total token throughput (tok/s):", found.per_second(found.input_tokens + found.output_tokens)),
    ]
    if found.drafted:
        lines += [
            line("Accept length:", found.spec.accept_length),
            heading("Speculation", "-"),
            *([line("Acceptance is:", SIMULATED)] if found.spec.simulated else []),
            *(
                line(f"Acceptance at position {position}:", rate)
                for position, rate in enumerate(found.spec.accept_rates, 1)
            ),
        ]
    return "\n".join([*lines, "=" * WIDTH])


def offline_record(found: Run, engine: Engine, settings: Settings) -> dict[str, Any]:
    """bench_offline_throughput's keys, then our own."""
    return {
        "backend": "nextn",
        "successful_requests": found.requests,
        "total_latency": found.seconds,
        "total_input_tokens": found.input_tokens,
        "total_output_tokens": found.output_tokens,
        "last_gen_throughput": found.last_throughput,
        "request_throughput": found.per_second(found.requests),
        "input_throughput": found.per_second(found.input_tokens),
        "output_throughput": found.per_second(found.output_tokens),
        "total_throughput": found.per_second(found.input_tokens + found.output_tokens),
        "cached_tokens": found.cached_tokens,
        "accept_length": found.spec.accept_length if found.drafted else None,
        "accept_rates": found.spec.accept_rates if found.drafted else [],
        "simulated": found.spec.simulated,
        "dataset_name": settings.dataset.name,
        "seed": settings.dataset.seed,
        "engine": dict(engine.startup),
    }
