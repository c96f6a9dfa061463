"""The page at /: the files of `page/`, read once. They need no key; what they fetch does."""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI, Response
from starlette.exceptions import HTTPException

FOLDER = Path(__file__).parent / "page"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Scripts, styles and requests of this server's own, nothing else; the page stands in no frame.
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


def add_page(app: FastAPI) -> None:
    files = {path.name: path.read_bytes() for path in FOLDER.iterdir()}

    def answer(name: str) -> Response:
        headers = {**HEADERS, "content-type": TYPES[Path(name).suffix]}
        return Response(files[name], headers=headers)

    @app.get("/")
    async def index() -> Response:
        return answer("index.html")

    @app.get("/page/{name}")
    async def file(name: str) -> Response:
        if name not in files:
            raise HTTPException(404, "Not Found")
        return answer(name)
