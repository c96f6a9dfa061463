"""Self-contained HTML pages: a Jinja template with the shared style in it."""

from __future__ import annotations

from pathlib import Path

import jinja2

STYLE = Path(__file__).parent / "page.css"


def render(template: Path, **values: object) -> str:
    """`template` gets `values`, and `style` for its <style>."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    return environment.from_string(template.read_text(encoding="utf-8")).render(
        style=STYLE.read_text(encoding="utf-8"), **values
    )
