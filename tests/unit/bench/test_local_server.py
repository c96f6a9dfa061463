"""Signals that end a measurement."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from nextn.bench.local_server import ended_like_ctrl_c


@pytest.fixture(params=[signal.SIG_IGN, signal.default_int_handler], ids=["background", "foreground"])
def ctrl_c(request: pytest.FixtureRequest) -> Iterator[object]:
    """SIGINT as a shell's job in the background finds it, and as others do."""
    before = signal.signal(signal.SIGINT, request.param)
    yield request.param
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_every_signal_ends_it(number: signal.Signals, ctrl_c: object) -> None:
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), ended_like_ctrl_c():
        signal.raise_signal(number)
    assert signal.getsignal(number) == before
    assert signal.getsignal(signal.SIGINT) == ctrl_c
