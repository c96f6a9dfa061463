"""nextn bench: the benchmarks. Each is a module of the same form as a command (nextn.cli)."""

from __future__ import annotations

import argparse
import importlib

HELP = "measure a server, the engine or its parts"
COMMANDS: dict[str, str] = {
    "serve": "nextn.cli.bench.serve",
    "compare": "nextn.cli.bench.compare",
    "offline": "nextn.cli.bench.offline",
    "micro": "nextn.cli.bench.micro",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(metavar="<command>", dest="bench_command", required=True)
    for name, module in COMMANDS.items():
        command = importlib.import_module(module)
        sub = commands.add_parser(name, help=command.HELP, description=command.HELP, allow_abbrev=False)
        command.add_arguments(sub)


def run(args: argparse.Namespace) -> int:
    return int(importlib.import_module(COMMANDS[args.bench_command]).run(args))
