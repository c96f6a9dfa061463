"""Where there are colours and where there is plain text; what a text may not do to a terminal."""

from __future__ import annotations

import io

import pytest

from nextn.bench.console import WIDTH, console, harmless, print_markdown, styled
from nextn.bench.progress import Progress

TABLE = "| a | b |\n| :--- | ---: |\n| 1 | 22 |\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _usual_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "60")


def test_a_terminal_has_colours() -> None:
    out = Terminal()
    assert styled(out)
    console(out).print("text [bold]", style="red")
    assert out.getvalue() == "\x1b[31mtext [bold]\x1b[0m\n"
    assert console(out).width == 60


@pytest.mark.parametrize(
    ("name", "value", "plain"), [("NO_COLOR", "1", True), ("NO_COLOR", "", False), ("TERM", "dumb", True)]
)
def test_what_turns_them_off(name: str, value: str, plain: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    monkeypatch.setenv("FORCE_COLOR", "1")  # which rich would follow
    out = Terminal()
    assert styled(out) == (not plain)
    console(out).print("text", style="bold red")
    print_markdown(TABLE, out)
    assert ("\x1b" in out.getvalue()) == (not plain)


def test_a_file_gets_plain_text_of_one_width() -> None:
    out = io.StringIO()
    console(out).print("x" * 300, style="bold", soft_wrap=True)
    print_markdown(TABLE, out)
    assert out.getvalue() == "x" * 300 + "\n" + TABLE + "\n"
    assert console(out).width == WIDTH


def test_markdown_is_laid_out_in_a_terminal() -> None:
    out = Terminal()
    print_markdown(TABLE, out)
    assert "22" in out.getvalue()
    assert "|" not in out.getvalue()


def test_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    for bar in (False, True):
        out = Terminal() if bar else io.StringIO()
        monkeypatch.setattr("sys.stderr", out)
        with Progress(2, bar) as progress:
            progress.now("warm-up")
            progress.advance()
            progress.say("a line")
        shown = out.getvalue()
        assert "a line\n" in shown
        assert ("warm-up" in shown and "1/2" in shown) == bar
        assert bar or shown == "a line\n"


def test_progress_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    out = Terminal()
    monkeypatch.setattr("sys.stderr", out)
    with Progress(0, True, "B") as progress:
        progress.at(500_000, 2_000_000)
    assert "0.5/2.0 MB" in out.getvalue()


def test_a_text_does_not_drive_the_terminal() -> None:
    assert harmless("a\tb\nü€\x1b]0;title\x07\x9b2J") == "a\tb\nü€\ufffd]0;title\ufffd\ufffd2J"
