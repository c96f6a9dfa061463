"""nextn serve: runs the HTTP server and its engine.

nextn serve                                   # the embedded model on http://127.0.0.1:30000
nextn serve /models/deepseek-v3 --port 8000 --speculative-num-steps 3
nextn serve --tp-size 2 --nnodes 2 --node-rank 0 --dist-init-addr 10.0.0.1:5000  # and with 1 on the other
"""

from __future__ import annotations

import argparse
import logging
import os

from nextn.cli.errors import CommandError
from nextn.cli.options import add_model, add_options, parse
from nextn.cli.torchrun import under_torchrun
from nextn.server_config import ServerConfig

HELP = "serve a model over HTTP, with the OpenAI API"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_options(parser, ServerConfig)


def run(args: argparse.Namespace) -> int:
    try:
        config = under_torchrun(parse(args, ServerConfig), os.environ)
    except ValueError as e:
        raise CommandError(str(e), 2) from e
    from nextn.server.process import logs

    logs.configure(config.log_level, config.log_format)
    if args.note:
        logging.getLogger("nextn.server").info(args.note)
    if config.node_rank:
        from nextn.engine.node import run_node

        return run_node(config.of_replica() if config.attention_dp > 1 else config)
    from nextn.server.launch import serve
    from nextn.server.process.supervisor import StartupError

    try:
        return serve(config)
    except StartupError as e:
        raise CommandError(str(e), 1) from e
