"""nextn bench serve: sends a load to a server and reports like bench_serving.

nextn bench serve                                       # a server of its own, the embedded model, real code
nextn bench serve --max-concurrency 4 -- --speculative-num-steps 3
nextn bench serve --base-url http://127.0.0.1:8000 --backend vllm --tokenizer DIR --dataset-name random
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from nextn.cli.bench.arguments import add_dataset, dataset_of, not_negative
from nextn.cli.demo import positive
from nextn.cli.errors import CommandError
from nextn.config import EMBEDDED

HELP = "send a load to a server and report throughput, latencies and acceptance as bench_serving does"
# The same as in nextn.bench, which takes too long to import for --help. A test compares them.
BACKENDS = ("nextn", "sglang", "sglang-oai", "sglang-oai-chat", "vllm")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_server(parser.add_argument_group("server"))
    add_load(parser.add_argument_group("load"))
    add_dataset(parser.add_argument_group("dataset"))
    add_output(parser.add_argument_group("output"))
    parser.add_argument(
        "server_options", nargs="*", metavar="-- OPTION",
        help="after --: options of `nextn serve`, for the server that the benchmark starts",
    )  # fmt: skip


def add_server(group: Any) -> None:
    group.add_argument(
        "--backend", choices=BACKENDS, default="nextn", help="API of the server (default: nextn)"
    )
    group.add_argument("--base-url", metavar="URL", help="a running server (default: one is started)")
    group.add_argument("--host", help="with --port, the same as --base-url (default: 127.0.0.1)")
    group.add_argument("--port", type=positive, help="port of a running server on --host")
    group.add_argument(
        "--model-path", "--model", metavar="DIR",
        help=f"checkpoint folder for the tokenizer and for a server that is started (default: {EMBEDDED})",
    )  # fmt: skip
    group.add_argument(
        "--tokenizer", metavar="DIR", help="folder with tokenizer.json, if it is not the model's"
    )
    group.add_argument(
        "--served-model-name", metavar="NAME", help="model named in requests (default: the server's first)"
    )


def add_load(group: Any) -> None:
    group.add_argument(
        "--request-rate", type=float, default=float("inf"), metavar="RATE",
        help="requests/s, Poisson arrivals (default: inf, all at once)",
    )  # fmt: skip
    group.add_argument("--max-concurrency", type=positive, metavar="N", help="maximum requests in flight")
    group.add_argument(
        "--warmup-requests", type=not_negative, default=1, metavar="N",
        help="requests that are sent first and not measured (default: 1)",
    )  # fmt: skip
    group.add_argument("--disable-ignore-eos", action="store_true", help="let an end token end a completion")
    group.add_argument(
        "--extra-request-body", metavar="JSON", help="object whose fields are added to every request"
    )
    group.add_argument(
        "--timeout", type=float, default=3600.0, metavar="SECONDS",
        help="a request without an answer for this long has failed (default: 3600)",
    )  # fmt: skip
    group.add_argument(
        "--seed", type=not_negative, default=1, help="seed of prompts, lengths and arrivals (default: 1)"
    )


def add_output(group: Any) -> None:
    group.add_argument("--output-file", type=Path, metavar="FILE", help="JSONL file that gets one more line")
    group.add_argument("--output-details", action="store_true", help="include every request's times and text")
    group.add_argument(
        "--goodput", nargs="+", default=[], metavar="NAME:MS",
        help="count requests within these latencies: ttft, tpot, e2el",
    )  # fmt: skip
    group.add_argument("--plot", type=Path, metavar="FILE", help="PNG of latencies and requests in flight")
    group.add_argument("--disable-tqdm", action="store_true", help="show no progress bar, even in a terminal")


def run(args: argparse.Namespace) -> int:
    from nextn.bench.console import styled
    from nextn.bench.errors import BenchError
    from nextn.bench.serve import Settings, run_serve

    base_url = url_of(args)
    if base_url is not None and args.server_options:
        raise CommandError(
            f"{args.server_options[0]}: options after -- are for a server that is started here"
        )
    settings = Settings(
        dataset=dataset_of(args, args.seed),
        backend=args.backend,
        base_url=base_url,
        api_key=os.environ.get("OPENAI_API_KEY"),
        model_path=args.model_path or EMBEDDED,
        server_options=args.server_options,
        served_model_name=args.served_model_name,
        tokenizer=args.tokenizer or args.model_path,
        request_rate=args.request_rate,
        max_concurrency=args.max_concurrency,
        warmup_requests=args.warmup_requests,
        ignore_eos=not args.disable_ignore_eos,
        extra_request_body=extra_body(args.extra_request_body),
        goodput=args.goodput,
        silence=args.timeout,
        output_file=args.output_file,
        output_details=args.output_details,
        plot=args.plot,
        bar=styled(sys.stderr) and not args.disable_tqdm,
    )
    try:
        return run_serve(settings)
    except BenchError as e:
        raise CommandError(str(e), 1) from e
    except (ValueError, OSError) as e:
        raise CommandError(str(e)) from e


def url_of(args: argparse.Namespace) -> str | None:
    if args.base_url is not None and (args.host or args.port):
        raise CommandError("--base-url says where the server is; leave --host and --port out")
    if args.host and not args.port:
        raise CommandError("--host needs --port")
    url = f"http://{args.host or '127.0.0.1'}:{args.port}" if args.port else args.base_url
    if url is None and args.backend == "sglang":
        raise CommandError("--backend sglang needs --base-url: `nextn serve` does not speak /generate")
    return None if url is None else str(url)


def extra_body(text: str | None) -> dict[str, Any] | None:
    try:
        body = None if text is None else json.loads(text)
    except ValueError as e:
        raise CommandError(f"--extra-request-body is not JSON: {e}") from e
    if body is not None and not isinstance(body, dict):
        raise CommandError("--extra-request-body must be a JSON object")
    return body
