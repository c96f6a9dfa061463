"""The tasks in the package: names, and where lm-eval finds them."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent.parent / "data" / "eval"
SHIPPED = ("nextn_next_line", "nextn_rest_of_line")
