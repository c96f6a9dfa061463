"""Serves the web page at /: the files in `page/`, which are read once. The files need no API key, but the
page's requests do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fastapi import FastAPI, Request, Response

FOLDER = Path(__file__).parent / "page"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".json": "application/json",
}
# The browser loads scripts and styles only from this server, sends requests only to it, and shows the page in
# no frame.
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


PATHS = {"/" if path.name == "index.html" else f"/page/{path.name}": path for path in FOLDER.iterdir()}


def add_page(app: FastAPI) -> None:
    for path, file in PATHS.items():
        app.add_route(path, answer(file.read_bytes(), TYPES[file.suffix]), methods=["GET"])


def answer(content: bytes, kind: str) -> Callable[[Request], Response]:
    return lambda request: Response(content, headers={**HEADERS, "content-type": kind})
