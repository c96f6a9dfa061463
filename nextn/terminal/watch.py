"""The loop of `nextn top`: scrapes a server at intervals, and shows each frame until the user ends it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator

import httpx
from rich.console import Console
from rich.live import Live

from nextn.bench.client import get_text_with, make_client
from nextn.bench.console import console
from nextn.bench.drafting import read_drafting
from nextn.bench.errors import BenchError
from nextn.drafting_state import DraftingState
from nextn.terminal.scrape import Scrape
from nextn.terminal.top import Frame, Window

SILENCE = 5.0  # seconds to wait for the server's answer


async def watch(url: str, api_key: str | None, once: bool, interval: float, seconds: float) -> None:
    """Shows frames until `q` or Ctrl-C, with metrics over the last `seconds`. With `once`, shows one frame.
    Raises BenchError if the first scrape fails."""
    out = console(sys.stdout)
    async with make_client(url, SILENCE, api_key) as client:
        frame = Frame(url, *await scrape_once(client))
        if once:
            out.print(frame.draw(out), soft_wrap=True)
            return
        with screen(out) as show:
            showing = asyncio.ensure_future(frames(client, frame, Window(seconds), interval, show))
            try:
                with keys(showing.cancel):
                    await asyncio.wait([showing])
            finally:
                showing.cancel()
    if not showing.cancelled():
        showing.result()


async def frames(
    client: httpx.AsyncClient, frame: Frame, window: Window, interval: float, show: Callable[[Frame], None]
) -> None:
    """Shows `frame` and then newer ones. Never returns. While the server does not answer, it shows the last
    frame with the reason."""
    window.push(frame.scrape)
    while True:
        show(frame)
        await asyncio.sleep(interval)
        try:
            scrape, auto = await scrape_once(client)
            frame = frame._replace(scrape=window.push(scrape), auto=auto, trouble="")
        except BenchError as e:
            frame = frame._replace(trouble=f"no answer; these numbers are old: {e}")


async def scrape_once(client: httpx.AsyncClient) -> tuple[Scrape, DraftingState | None]:
    """Takes one scrape, and reads the state of automatic depth. Raises BenchError."""
    text = await get_text_with(client, "/metrics")
    try:
        scrape = Scrape.read(text, time.monotonic())
    except ValueError as e:
        raise BenchError(f"{client.base_url}metrics: not in Prometheus' format: {e}") from e
    return scrape, await read_drafting(client)


@contextlib.contextmanager
def screen(out: Console) -> Iterator[Callable[[Frame], None]]:
    """Yields a function that shows a frame. In a terminal, each frame replaces the one before, and is drawn
    again when the terminal's size changes. Otherwise frames are printed one after another."""
    if not out.is_terminal:
        yield lambda frame: out.print(frame.draw(out), soft_wrap=True)
        return
    shown: list[Frame] = []
    loop = asyncio.get_running_loop()
    with Live(console=out, screen=True, auto_refresh=False) as live:

        def draw() -> None:
            for frame in shown:
                live.update(frame.draw(out), refresh=True)

        def show(frame: Frame) -> None:
            shown[:] = [frame]
            draw()

        loop.add_signal_handler(signal.SIGWINCH, draw)
        try:
            yield show
        finally:
            loop.remove_signal_handler(signal.SIGWINCH)


@contextlib.contextmanager
def keys(end: Callable[[], object]) -> Iterator[None]:
    """Inside this context, the key `q` calls `end`, if standard input is a terminal."""
    if not sys.stdin.isatty():
        yield
        return
    import termios
    import tty

    stdin, loop = sys.stdin.fileno(), asyncio.get_running_loop()
    before = termios.tcgetattr(stdin)

    def pressed() -> None:
        read = os.read(stdin, 64)
        if b"q" in read.lower() or not read:  # empty if the terminal was closed
            end()

    tty.setcbreak(stdin)
    loop.add_reader(stdin, pressed)
    try:
        yield
    finally:
        loop.remove_reader(stdin)
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)
