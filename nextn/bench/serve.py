"""`nextn bench serve` measures one load on one server.

It runs the warm-up, reads the counters, runs the load, and reads the counters again, so that the results are
of the load only. The warm-up sends the first prompts reversed, so that no prompt of the load gets into the
server's prefix cache.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

from nextn.bench import datasets
from nextn.bench.acceptance import acceptance_since, read_counters
from nextn.bench.apis import BACKENDS, Api
from nextn.bench.arrivals import poisson_arrivals
from nextn.bench.block import result_block
from nextn.bench.client import Load, make_client, measure_load
from nextn.bench.datasets import Sample, load_samples
from nextn.bench.errors import BenchError
from nextn.bench.goodput import goodput, parse_slos
from nextn.bench.load_plot import load_plot
from nextn.bench.local_server import LocalServer, ended_like_ctrl_c
from nextn.bench.measure import calculate_metrics
from nextn.bench.outcome import Outcome
from nextn.bench.progress import Progress
from nextn.bench.servers import last_lines_on_error
from nextn.bench.target import Target, find_target
from nextn.tokenizer import Tokenizer

WARMUP_TOKENS = 32  # at most, of each warm-up completion


@dataclass(frozen=True)
class Settings:
    dataset: datasets.Options
    backend: str = "nextn"
    base_url: str | None = None  # None: start a server here
    api_key: str | None = None  # sent to `base_url`
    model_path: str = ""  # for the server that is started here
    server_options: Sequence[str] = ()  # for the server that is started here
    served_model_name: str | None = None
    tokenizer: str | None = None
    request_rate: float = float("inf")
    max_concurrency: int | None = None
    warmup_requests: int = 1
    ignore_eos: bool = True
    extra_request_body: dict[str, Any] | None = None
    goodput: Sequence[str] = ()
    silence: float = 3600.0  # seconds without data after which a request fails
    output_file: Path | None = None
    output_details: bool = False
    plot: Path | None = None
    bar: bool = False


def run_serve(settings: Settings) -> int:
    """Runs the load and returns the exit code: 0, or 1 if a request failed. Raises ValueError and OSError for
    errors that the user can fix, BenchError if the server does not start or fails the warm-up."""
    slos = parse_slos(settings.goodput)
    poisson_arrivals(0, settings.request_rate, 0)  # the rate is checked before a server starts
    with ended_like_ctrl_c(), server(settings) as url:
        outcome = uvloop.run(measure(settings, url, slos))
    print(result_block(outcome))
    for kind, message in {f.kind: str(f) for f in reversed(outcome.load.failures)}.items():
        print(f"{kind}, the first: {message}", file=sys.stderr)
    if settings.output_file is not None:
        details = outcome.details() if settings.output_details else {}
        with settings.output_file.open("a", encoding="utf-8") as out:
            out.write(json.dumps(outcome.record() | details) + "\n")
    if settings.plot is not None:
        settings.plot.write_bytes(load_plot(title(outcome), outcome.load))
    return 1 if outcome.load.failures else 0


@contextlib.contextmanager
def server(settings: Settings) -> Iterator[str]:
    """Yields the URL of the server at `base_url`, or of a server that is started and ended here."""
    if settings.base_url is not None:
        yield settings.base_url.rstrip("/").removesuffix("/v1")
        return
    options = ["--model-path", settings.model_path, *settings.server_options]
    with (
        tempfile.TemporaryDirectory(prefix="nextn-bench-") as folder,
        LocalServer("of the benchmark", options, Path(folder) / "server.log") as own,
        last_lines_on_error(own),
    ):
        own.wait_ready()
        yield own.url


async def measure(settings: Settings, url: str, slos: dict[str, float]) -> Outcome:
    api = BACKENDS[settings.backend]
    key = settings.api_key if settings.base_url is not None else None
    target = await find_target(url, settings.served_model_name, settings.tokenizer, key)
    samples = load_samples(settings.dataset, target.tokenizer)
    if not api.takes_ids:
        samples = as_text(samples, target.tokenizer)
    await warm_up(settings, target, samples)
    bodies = [body(settings, api, target, sample) for sample in samples]
    arrivals = poisson_arrivals(len(bodies), settings.request_rate, settings.dataset.seed)
    before = await read_counters(url, key)
    with Progress(len(bodies), settings.bar) as progress:
        async with make_client(url, settings.silence, key) as client:
            load = await measure_load(
                client, api, bodies, arrivals, settings.max_concurrency, progress.advance
            )
    return Outcome(
        backend=settings.backend,
        model=target.model,
        dataset=settings.dataset,
        request_rate=settings.request_rate,
        max_concurrency=settings.max_concurrency,
        load=load,
        metrics=calculate_metrics(load),
        retokenized=retokenized(load, target.tokenizer),
        acceptance=await acceptance_since(url, before, key),
        goodput=goodput(load, slos) if slos else None,
    )


async def warm_up(settings: Settings, target: Target, samples: Sequence[Sample]) -> None:
    """Sends all warm-up requests at once. Raises BenchError if one fails, because the load would fail too."""
    api = BACKENDS[settings.backend]
    bodies = []
    for i in range(settings.warmup_requests):
        sample = samples[i % len(samples)]
        short = Sample(sample.prompt[::-1], min(sample.output_len, WARMUP_TOKENS))
        bodies.append(body(settings, api, target, short))
    async with make_client(target.url, settings.silence, target.api_key) as client:
        load = await measure_load(client, api, bodies, [0.0] * len(bodies), None)
    if load.failures:
        raise BenchError(f"the warm-up failed ({load.failures[0].kind}): {load.failures[0]}")


def body(settings: Settings, api: Api, target: Target, sample: Sample) -> dict[str, Any]:
    made = api.body(target.model, sample.prompt, sample.output_len, settings.ignore_eos)
    if "model" in made and target.model is None:
        raise BenchError(f"{target.url}/v1/models lists no model; check the URL, or give --served-model-name")
    return made | (settings.extra_request_body or {})


def as_text(samples: Sequence[Sample], tokenizer: Tokenizer | None) -> list[Sample]:
    def text(sample: Sample) -> Sample:
        if isinstance(sample.prompt, str):
            return sample
        if tokenizer is None:
            raise ValueError("prompts of token ids need the model's tokenizer here; give --tokenizer")
        return Sample(tokenizer.decode(sample.prompt), sample.output_len)

    return [text(sample) for sample in samples]


def retokenized(load: Load, tokenizer: Tokenizer | None) -> int | None:
    if tokenizer is None:
        return None
    texts = [reply.text for reply in load.replies]
    return sum(len(ids) for ids in tokenizer.encode_batch(texts, add_special_tokens=False))


def title(outcome: Outcome) -> str:
    return (
        f"{outcome.model or outcome.backend}, {outcome.dataset.name}: {outcome.metrics.requests} requests, "
        f"{outcome.metrics.output_throughput:.1f} output tokens/s"
    )
