"""Runs benchmarks of `nextn` and writes their results to benchmarks/results/, by theme, hardware and date.

python benchmarks/record.py                   # all: about twenty minutes on two quiet cores
python benchmarks/record.py demo micro        # some

The files are named theme_hardware_date: the command's JSON, its Markdown table and its plots. The comparisons
with other engines and other benchmark clients have separate scripts (benchmarks/peers, benchmarks/interop).
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from last_line import result_name

RESULTS = Path(__file__).parent / "results"
COMPARE = ["bench", "compare", "--output-dir"]
# theme -> (command, whose last word takes a folder or file; options after it)
THEMES: dict[str, tuple[list[str], list[str]]] = {
    "demo": (["demo", "--output-dir"], []),
    "micro": (["bench", "micro", "--output-dir"], []),
    "compare-code": (COMPARE, ["--concurrency", "1,2,4,8,16"]),
    "compare-depths": (COMPARE, ["--num-steps", "0,1,2,3", "--concurrency", "1,4,16,64"]),
    "compare-auto": (
        COMPARE,
        ["--num-steps", "0,1,2,3,4", "--side", "auto=--speculative-num-steps auto",
         "--concurrency", "1,2,4,8,16,32,64", "--rounds", "8"],
    ),
    "compare-scenarios": (
        COMPARE,
        ["--num-steps", "0,2", "--scale", "0.05", "--scenario", "random", "sharegpt", "translation",
         "generation", "summarization"],
    ),
    "compare-reference": (
        COMPARE,
        ["--side", "plain torch=--kernel-backend reference --speculative-num-steps 0",
         "--side", "plain torch, MTP=--kernel-backend reference --speculative-num-steps 2",
         "--side", "native=--speculative-num-steps 0", "--side", "native, MTP=--speculative-num-steps 2",
         "--concurrency", "1,16"],
    ),
    "eval": (["eval", "--output-dir"], []),
    "offline": (["bench", "offline", "--output-file"], []),
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("themes", nargs="*", metavar="THEME", help=f"{', '.join(THEMES)} (default: all)")
    args = parser.parse_args()
    unknown = set(args.themes) - set(THEMES)
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: there are {', '.join(THEMES)}")
    return max(record(theme) for theme in args.themes or THEMES)


def record(theme: str) -> int:
    """Runs the command of a theme and copies its results. Returns the command's exit code."""
    name = result_name(theme)
    command, options = THEMES[theme]
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary) / ("out.jsonl" if command[-1] == "--output-file" else "out")
        print(f"--- {' '.join(['nextn', *command[:-1], *options])}", flush=True)
        run = subprocess.run(
            [sys.executable, "-m", "nextn", *command, str(out), *options], stdout=subprocess.PIPE, text=True
        )
        print(run.stdout, end="", flush=True)
        if run.returncode == 0:
            RESULTS.mkdir(exist_ok=True)
            if theme == "demo":  # it prints only a table
                shutil.copy(out / "results.json", RESULTS / f"{name}.json")
            elif (last := run.stdout.rstrip().splitlines()[-1]).startswith("{"):  # nextn eval prints no JSON
                (RESULTS / f"{name}.json").write_text(last + "\n")
            plots = [p for p in sorted(out.rglob("*.png")) if not p.stem.endswith("-dark")]
            for plot in plots:
                shutil.copy(plot, RESULTS / f"{name}_{plot.name}")
            for table in sorted(out.glob("*.md")) if out.is_dir() else ():
                shutil.copy(table, RESULTS / f"{name}.md")
    return run.returncode


if __name__ == "__main__":
    sys.exit(main())
