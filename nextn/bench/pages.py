"""Renders self-contained HTML pages from a Jinja template and the shared style."""

from __future__ import annotations

from pathlib import Path

import jinja2

# The colours are those of the server's page.
STYLES = (
    Path(__file__).parent.parent / "server" / "http" / "page" / "colours.css",
    Path(__file__).parent / "page.css",
)


def render(template: Path, **values: object) -> str:
    """Renders `template` with `values`, and with `style` for its <style> element."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    style = "\n".join(path.read_text(encoding="utf-8") for path in STYLES)
    return environment.from_string(template.read_text(encoding="utf-8")).render(style=style, **values)
