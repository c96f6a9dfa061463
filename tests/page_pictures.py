"""Pictures of the page at /, of the embedded model: python tests/page_pictures.py FOLDER

page-light-1280.png and the like: what docs/page.md shows, kept small (one pixel a point, 64 colours at most).
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from PIL import Image
from support.browser import Chromium, Page
from support.server_process import ServerProcess

VERDICT = "document.getElementById('verdict').textContent"


def take(page: Page, path: Path, width: int, scheme: str) -> None:
    page.prefer(scheme)
    page.resize(width, 900)
    page.resize(width, page.get("document.documentElement.scrollHeight"))
    page.screenshot(path)
    with Image.open(path) as picture:
        small = picture.convert("RGB").quantize(64)
    small.save(path, optimize=True)
    print(path, path.stat().st_size)


def click(page: Page, name: str) -> None:
    page.get(f"document.getElementById({name!r}).click()")


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with ServerProcess(["-m", "nextn", "serve", "--port", "0"]) as server, Chromium() as browser:
        page = browser.open(server.url + "/", 1280)
        for preset in range(6):  # so that the sparklines show something
            page.get(f"document.getElementById('preset').selectedIndex = {5 - preset}")
            page.get("document.getElementById('preset').dispatchEvent(new Event('change'))")
            click(page, "run")
            page.until(f"{VERDICT}.includes('identical')")
            time.sleep(1.0)
        for _ in range(6):
            click(page, "next")
        for width in (1280, 390):
            for scheme in ("light", "dark"):
                take(page, folder / f"page-{scheme}-{width}.png", width, scheme)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
