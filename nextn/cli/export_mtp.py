"""nextn export-mtp: writes a checkpoint's MTP layer to its own folder.

nextn export-mtp --input-dir /models/DeepSeek-V3 --output-dir /models/DeepSeek-V3-NextN
nextn serve --model-path /models/DeepSeek-V3-W --speculative-draft-model-path /models/DeepSeek-V3-NextN
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from nextn.cli.errors import CommandError

HELP = "write a checkpoint's MTP layer to a folder of its own, for --speculative-draft-model-path"
UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--input-dir",
        required=True,
        metavar="DIR",
        help="checkpoint folder, or nextn-tiny, the model in the package",
    )
    parser.add_argument(
        "--output-dir", type=Path, required=True, metavar="DIR",
        help="folder to write; must be new or empty; appears when the export is complete",
    )  # fmt: skip
    weights = parser.add_mutually_exclusive_group()
    weights.add_argument(
        "--keep-fp8", dest="dequantize", action="store_false", default=False,
        help="copy FP8 blocks as they are stored (default)",
    )  # fmt: skip
    weights.add_argument("--dequantize", action="store_true", help="write FP8 blocks as bf16")
    tables = parser.add_mutually_exclusive_group()
    tables.add_argument(
        "--without-shared", dest="with_shared", action="store_false", default=False,
        help="leave out the copies of embedding and head; nextn and SGLang use the target's (default)",
    )  # fmt: skip
    tables.add_argument(
        "--with-shared", action="store_true", help="write the copies of embedding and head too"
    )
    parser.add_argument(
        "--max-shard-size", type=size, default="5GB", metavar="SIZE",
        help="largest file, as in 500MB, 5GB, 2GiB or a number of bytes (default: 5GB)",
    )  # fmt: skip
    parser.add_argument(
        "--progress", action="store_true", help="show the progress bar even if stderr is not a terminal"
    )


def run(args: argparse.Namespace) -> int:
    from nextn.bench.console import styled
    from nextn.bench.progress import Progress
    from nextn.config import model_folder
    from nextn.models.export import export_mtp

    with Progress(0, args.progress or styled(sys.stderr), "B") as bar:
        try:
            report = export_mtp(
                model_folder(args.input_dir),
                args.output_dir,
                dequantize=args.dequantize,
                with_shared=args.with_shared,
                shard_bytes=args.max_shard_size,
                progress=bar.at,
            )
        except ValueError as e:
            raise CommandError(str(e)) from e
        except OSError as e:
            raise CommandError(f"--output-dir {args.output_dir} cannot be written: {e}", 1) from e
    layers = "1 NextN layer" if report.layers == 1 else f"{report.layers} NextN layers"
    print(f"{args.output_dir}: {layers}, {report.tensors} tensors, {report.bytes / 1e6:,.1f} MB")
    return 0


def size(text: str) -> int:
    """Parses a size into bytes.

    >>> size("1.5GB")
    1500000000
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?I?B?)", text.strip().upper())
    unit = match[2] if match else ""
    if match is None or unit not in UNITS or float(match[1]) * UNITS[unit] < 1:
        raise argparse.ArgumentTypeError(
            f"{text!r}: a size is a number of bytes, or one with KB, MB, GB, MiB or GiB"
        )
    return int(float(match[1]) * UNITS[unit])
