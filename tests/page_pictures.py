"""Pictures of the page at /, of the embedded model: python tests/page_pictures.py FOLDER

side-by-side.png is docs/pictures/page.png; light, dark and narrow are there to be looked at after a change.
"""

from __future__ import annotations

import sys
from pathlib import Path

from support.browser import Chromium, Page
from support.server_process import ServerProcess

VERDICT = "document.getElementById('verdict').textContent"


def take(page: Page, path: Path, width: int, scheme: str) -> None:
    page.prefer(scheme)
    page.resize(width, 900)
    page.resize(width, page.get("document.documentElement.scrollHeight"))
    page.screenshot(path)
    print(path)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with ServerProcess(["-m", "nextn", "serve", "--port", "0"]) as server, Chromium() as browser:
        page = browser.open(server.url + "/", 1200)
        page.get("document.getElementById('run').click()")
        page.until(f"{VERDICT}.startsWith('Done')")
        for name, width, scheme in (
            ("light", 1200, "light"),
            ("dark", 1200, "dark"),
            ("narrow", 390, "dark"),
        ):
            take(page, folder / f"{name}.png", width, scheme)
        page.get("document.getElementById('compare').click(); document.getElementById('run').click()")
        page.until(f"{VERDICT}.includes('identical')")
        take(page, folder / "side-by-side.png", 1200, "light")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
