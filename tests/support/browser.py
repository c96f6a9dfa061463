"""A headless Chromium, controlled with the DevTools protocol through a pipe. It needs no driver and no
package.

with Chromium() as browser:
    page = browser.open("http://127.0.0.1:30000/")
    page.until("document.title == 'nextn'")
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
# Chromium reads commands from descriptor 3 and answers on 4.
LAUNCH = "import os, sys\nr, w, *c = sys.argv[1:]\nos.dup2(int(r), 3)\nos.dup2(int(w), 4)\nos.execvp(c[0], c)"
WAIT = 20.0  # seconds to wait for anything


def find_chromium() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Chromium:
    """A browser process. Methods raise AssertionError if the browser refuses a call or does not answer in
    time."""

    def __init__(self) -> None:
        program = find_chromium()
        assert program is not None, "no Chromium on this machine"
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        commands, self._to = pipe()
        self._from, answers = pipe()
        options = (
            "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--no-first-run",
            "--disable-dev-shm-usage", "--disable-background-networking", "--hide-scrollbars",
            f"--user-data-dir={self.profile.name}", "about:blank",
        )  # fmt: skip
        self.process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, str(commands), str(answers), program, *options],
            pass_fds=(commands, answers), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(commands)
        os.close(answers)
        self._rest = b""
        self._calls = 0
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str | None = None, /, **params: Any) -> dict[str, Any]:
        self._calls += 1
        message = {"id": self._calls, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._calls:
                assert "error" not in answer, f"{method}: {answer}"
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def _read(self) -> dict[str, Any]:
        deadline = time.monotonic() + WAIT
        while b"\0" not in self._rest:
            assert select.select([self._from], [], [], max(deadline - time.monotonic(), 0))[0], "no answer"
            more = os.read(self._from, 2**16)
            assert more, "the browser ended"
            self._rest += more
        message, _, self._rest = self._rest.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer

    def open(self, url: str, width: int = 1200, height: int = 900) -> Page:
        # A browser context of its own, so that the page does not see what another page has stored.
        context = self.call("Target.createBrowserContext")["browserContextId"]
        made = self.call("Target.createTarget", url="about:blank", browserContextId=context)
        target = made["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, target, session)
        for domain in ("Page", "Runtime", "Log"):
            page.call(f"{domain}.enable")
        page.resize(width, height)
        page.call("Page.navigate", url=url)
        page.until(f"location.href.startsWith({json.dumps(url)}) && document.readyState == 'complete'")
        return page

    def __enter__(self) -> Chromium:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.process.terminate()
        self.process.wait(WAIT)
        os.close(self._to)
        os.close(self._from)
        self.profile.cleanup()


class Page:
    def __init__(self, browser: Chromium, target: str, session: str) -> None:
        self.browser, self.target, self.session = browser, target, session

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self.browser.call(method, self.session, **params)

    def get(self, expression: str) -> Any:
        """The value of a JavaScript expression. A promise is awaited."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, expression: str) -> None:
        deadline = time.monotonic() + WAIT
        while not self.get(expression):
            assert time.monotonic() < deadline, (
                f"never true: {expression}; {self.get('document.body.innerText')}"
            )
            time.sleep(0.02)

    def press(self, key: str, ctrl: bool = False, text: str = "") -> None:
        codes = {"Enter": 13, "Escape": 27, "Tab": 9, " ": 32}
        common = {"key": key, "modifiers": 2 if ctrl else 0, "windowsVirtualKeyCode": codes[key]}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def resize(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def prefer(self, scheme: str) -> None:
        """Sets the system's theme, "light" or "dark"."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def screenshot(self, path: Path) -> None:
        """Writes a screenshot of the whole page to `path`."""
        made = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(made["data"]))

    def complaints(self) -> list[Any]:
        """The errors in the page's console so far: exceptions, refused scripts and styles, failed fetches."""
        found = []
        for event in self.browser.events:
            if event.get("sessionId") != self.session:
                continue
            if event["method"] == "Runtime.exceptionThrown":
                found.append(event["params"]["exceptionDetails"])
            entry = event["params"].get("entry", {})
            if event["method"] == "Log.entryAdded" and entry["level"] == "error":
                found.append(entry["text"])
        return found

    def close(self) -> None:
        self.browser.call("Target.closeTarget", targetId=self.target)


def pipe() -> tuple[int, int]:
    """A pipe whose ends are above the descriptors that have a meaning for the child."""
    ends = os.pipe()
    r, w = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
    for end in ends:
        os.close(end)
    return r, w
