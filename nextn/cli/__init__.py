"""The `nextn` command: finds the subcommand's module, parses the arguments, and runs it.

A command is a module with `HELP: str`, `add_arguments(parser)` and `run(args) -> exit code`. Heavy imports
are in `run`, not at the module's top level, so that `nextn --help` is fast.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

import nextn
from nextn.checkpoint_error import CheckpointError
from nextn.cli.errors import CommandError
from nextn.cli.parser import Parser, dashed

COMMANDS: dict[str, str] = {
    "serve": "nextn.cli.serve",
    "demo": "nextn.cli.demo",
    "bench": "nextn.cli.bench",
    "eval": "nextn.cli.eval",
    "generate": "nextn.cli.generate",
    "chat": "nextn.cli.chat",
    "top": "nextn.cli.top",
    "inspect": "nextn.cli.inspect",
    "token-map": "nextn.cli.token_map",
    "eplb": "nextn.cli.eplb",
    "export-mtp": "nextn.cli.export_mtp",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command. Returns its exit code: 2 for a user's mistake, 1 for a server that cannot start, 130
    for Ctrl-C."""
    words = [dashed(word) for word in (sys.argv[1:] if argv is None else argv)]
    if not words or words[0] not in COMMANDS:
        overview().parse_args(words)  # prints help, the version or an error, and exits
    name = words[0]
    try:
        command = importlib.import_module(COMMANDS[name])
        parser = Parser(prog=f"nextn {name}", description=command.HELP, allow_abbrev=False)
        command.add_arguments(parser)
        args = parser.parse_args(words[1:])
        return int(command.run(args))
    except CommandError as e:
        print(f"nextn {name}: error: {e}", file=sys.stderr)
        return e.exit_code
    except CheckpointError as e:
        print(f"nextn {name}: error: {' '.join(str(e).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"nextn {name}: ended by Ctrl-C", file=sys.stderr)
        return 130


def overview() -> Parser:
    parser = Parser(prog="nextn", description=(nextn.__doc__ or "").splitlines()[0], allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"nextn {nextn.__version__}")
    commands = parser.add_subparsers(metavar="<command>", required=True)
    for name, module in COMMANDS.items():
        commands.add_parser(name, help=importlib.import_module(module).HELP)
    return parser
