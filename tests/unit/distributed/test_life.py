"""A stopped process is noticed by those that watch it, however long it may be silent."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping

import pytest
from support.server_process import until

from nextn.distributed import life
from nextn.distributed.life import StopWatch, is_stopped
from nextn.distributed.pulse import LOADING, Pulse

pytestmark = pytest.mark.skipif(not life.sys.platform.startswith("linux"), reason="only Linux says it")


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as made:
        yield made
        made.kill()


def test_how_long_a_process_is_stopped(
    process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = StopWatch(process.pid)

    def stopped_at(*times: float) -> list[bool]:
        found = []
        for now in times:
            monkeypatch.setattr(life.time, "monotonic", lambda now=now: now)
            found.append(watch.stopped)
        monkeypatch.undo()
        return found

    assert stopped_at(0.0, 1.0, 2.0, 3.0) == [False] * 4
    process.send_signal(signal.SIGSTOP)
    until(lambda: is_stopped(process.pid))
    assert stopped_at(4.0, 5.0, 5.9, 6.0) == [False, False, False, True]
    # Nobody asked for long, perhaps because all were stopped: the time begins anew.
    assert stopped_at(9.0, 10.9, 11.0) == [False, False, True]
    process.send_signal(signal.SIGCONT)
    until(lambda: not is_stopped(process.pid))
    assert stopped_at(12.0) == [False]
    process.kill()
    process.wait()
    assert stopped_at(13.0, 15.0) == [False, False]


class Silent:
    """A rank that loads: it has not beaten yet."""

    def beat(self) -> None:
        pass

    def beats(self) -> Mapping[int, int | None]:
        return {1: 0}


def test_a_rank_that_is_stopped_while_it_loads(
    process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(life, "STOPPED_SECONDS", 0.0)
    lost: list[tuple[int, str]] = []
    ended = threading.Event()

    def note(rank: int, what: str) -> None:
        lost.append((rank, what))
        ended.set()

    process.send_signal(signal.SIGSTOP)
    until(lambda: is_stopped(process.pid))
    pulse = Pulse(Silent(), note, LOADING, {1: StopWatch(process.pid)})
    assert ended.wait(20)
    pulse.stop()
    assert lost == [(1, "is stopped")]
