"""`nextn chat` and `nextn top` against the scripted engine, as commands."""

from __future__ import annotations

import io
import os
import pty
import re
import signal
import subprocess
import sys

import pytest
from support.scripted_engine import TEXT
from support.server_process import ServerProcess, until

from nextn.cli import main


def test_chat(
    scripted: ServerProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = "hello\n/nomtp\n\n again\n/clear\n" + "x" * 2000 + "\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    options = ["--base-url", scripted.url, "--max-tokens", "30", "--temperature", "0"]
    assert main(["chat", *options]) == 0
    out, err = capsys.readouterr()
    assert out == f"{TEXT[:30]}\n" * 2
    said = err.splitlines()
    assert said[0].startswith(f"scripted on {scripted.url}")
    assert re.fullmatch(r"30 tokens, accept length 3.00 \(100% 100%\), TTFT \d+ ms, \d+ tok/s", said[1])
    assert said[2] == "drafts: none"
    assert said[3].startswith("30 tokens, accept length 1.00, ")
    assert said[4] == "the conversation begins anew"
    assert said[5].startswith("error: the server answered with an error (400): ")
    assert len(said) == 6


def test_ctrl_c_stops_an_answer_and_frees_it(slow: ServerProcess) -> None:
    """In a terminal. Between answers, Ctrl-C ends the program."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "nextn", "chat", "--base-url", slow.url, "--max-tokens", "500"]
    chat = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    seen = b""

    def see(text: bytes) -> None:
        nonlocal seen
        while text not in seen:
            seen += os.read(ours, 4096)

    try:
        see(b"> ")
        os.write(ours, b"hello\n")
        until(lambda: slow.metrics()["nextn:num_running_reqs"] == 1)
        see(b"def add")
        chat.send_signal(signal.SIGINT)
        see(b"stopped")
        until(lambda: slow.metrics()["nextn:num_running_reqs"] == 0)
        see(b"> ")
        chat.send_signal(signal.SIGINT)
        see(b"ended by Ctrl-C")
        assert chat.wait(20) == 130
    finally:
        chat.kill()
        chat.wait()
        os.close(ours)


def test_top(scripted: ServerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--once", "--base-url", scripted.url + "/"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"nextn top     {scripted.url}, since it was started\n")
    assert re.search(r"requests      0 running, 0 queued; \d+ came", out)


@pytest.mark.parametrize("command", [["chat"], ["top"], ["top", "--once"]])
def test_no_server(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--base-url", "http://127.0.0.1:9"]) == 1
    assert "`nextn serve` starts a server" in capsys.readouterr().err
