"""Executes the tutorial notebook and saves it with its outputs, without data of one machine.

    python examples/execute.py                                   # overwrites examples/mtp_tutorial.ipynb
    python examples/execute.py --output /tmp/out.ipynb           # writes another file

It needs nbclient and ipykernel (`pip install -e '.[test]'`).
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parent / "mtp_tutorial.ipynb"
CELL_SECONDS = 600
LOG = re.compile(r"port \d+; the server's output goes to \S+")
LAUNCHED = "port 30000; the server's output goes to /tmp/server-30000.log"


def main() -> int:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--output", type=Path, default=NOTEBOOK, help="default: %(default)s")
    args = parser.parse_args()
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    with tempfile.TemporaryDirectory() as folder:  # the notebook's working folder
        NotebookClient(
            notebook, timeout=CELL_SECONDS, kernel_name="python3", resources={"metadata": {"path": folder}}
        ).execute()
    clean(notebook)
    nbformat.write(notebook, args.output)
    print(f"wrote {args.output}")
    return 0


def clean(notebook: Any) -> None:
    """Removes paths, ports, times of execution and the kernel's version."""
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for cell in notebook.cells:
        cell.metadata = {}
        for output in cell.get("outputs", []):
            if "text" in output:
                output.text = LOG.sub(LAUNCHED, output.text)


if __name__ == "__main__":
    sys.exit(main())
