"""`nextn chat` and `nextn top` against the scripted engine: as commands, and in a terminal."""

from __future__ import annotations

import io
import re
import signal
import sys
from pathlib import Path

import httpx
import pytest
from e2e.conftest import StartServer
from support.scripted_engine import TEXT
from support.server_process import ServerProcess, scripted_python, until
from support.small_tokenizer import write_small_tokenizer
from support.terminal import Terminal

from nextn.cli import main
from nextn.config import EMBEDDED

ESCAPE = b"\x1b"
READY = "\x1b[?2004h"  # the editor takes what is pasted as one text


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
    assert said[0] == f"scripted on {scripted.url}"
    assert said[1].startswith("commands: /clear /system /nomtp /mtp /help /quit; ")
    assert re.fullmatch(r"30 tokens, accept length 3.00 \(100% 100%\), TTFT \d+ ms, \d+ tok/s", said[2])
    assert said[3] == "drafts: none"
    assert said[4].startswith("30 tokens, accept length 1.00, ")
    assert said[5] == "the conversation is cleared"
    assert said[6].startswith("error: the server answered with an error (400): ")
    assert len(said) == 7
    assert "\x1b" not in out + err


def test_chat_starts_a_server_of_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the model in the package, with which it is greedy: the scripted engine begins at the start of its
    text."""
    folder = write_small_tokenizer(tmp_path / EMBEDDED)
    monkeypatch.setenv("SCRIPT_TOKENIZER", str(folder))
    python, refusing = scripted_python(tmp_path), scripted_python(folder, "--no-such-option")
    monkeypatch.setattr(sys, "executable", python)
    monkeypatch.setattr(sys, "stdin", io.StringIO("a\nb\n"))
    assert main(["chat", "--model", str(folder), "--max-tokens", "9"]) == 0
    out, err = capsys.readouterr()
    assert out == f"{TEXT[:9]}\n" * 2
    assert err.startswith(f"starting {folder}\n{EMBEDDED} on http://127.0.0.1:")
    assert "This model completes Python code, greedily. It is no chat model" in err
    assert "accept length" in err.splitlines()[-1]
    url = re.search(r"http://\S+", err)
    assert url
    with pytest.raises(httpx.ConnectError):  # it ended with the chat
        httpx.get(f"{url[0]}/health")
    monkeypatch.setattr(sys, "executable", refusing)
    assert main(["chat", "--model", str(folder)]) == 1
    assert "--no-such-option" in capsys.readouterr().err
    assert main(["chat", "--model", EMBEDDED, "--base-url", "http://127.0.0.1:1"]) == 2
    assert "leave one out" in capsys.readouterr().err


def test_ctrl_c_stops_an_answer_and_frees_it(slow: ServerProcess) -> None:
    """What the server then has is the next answer's."""
    with Terminal(["chat", "--base-url", slow.url, "--max-tokens", "500"]) as chat:
        chat.see(READY)
        chat.type("hello\r")
        until(lambda: slow.metrics()["nextn:num_running_reqs"] == 1)
        chat.see("def add")
        chat.process.send_signal(signal.SIGINT)
        chat.see("stopped")
        until(lambda: slow.metrics()["nextn:num_running_reqs"] == 0)
        chat.type("/quit\r")
        assert chat.wait() == 0


def test_a_chat_has_lines_history_and_completion(scripted: ServerProcess) -> None:
    with Terminal(["chat", "--base-url", scripted.url, "--max-tokens", "9"]) as chat:
        chat.see(READY)
        chat.type("/no")
        chat.see("switch drafts off")  # what the completion would do
        chat.type("\t\r")
        chat.see("drafts: none")
        chat.see(READY)  # before that, Alt+Enter would be Enter
        chat.type("def f():\x1b\r    pass\x1b\r")  # Alt+Enter
        chat.see("    pass")
        chat.type("\r")
        chat.see("9 tokens, accept length 1.00")
        chat.see(READY)  # before that, Ctrl-C ends the answer alone
        chat.type("\x1b[A")  # the arrow up
        chat.see("    pass")
        chat.type("\x03")  # Ctrl-C
        chat.see("ended by Ctrl-C")
        assert chat.wait() == 130


def test_a_plain_chat(scripted: ServerProcess) -> None:
    options = ["--base-url", scripted.url, "--max-tokens", "9"]
    with Terminal(["chat", *options], environment={"NO_COLOR": "1"}) as chat:
        chat.see("> ")
        chat.type("hello\n")
        chat.see("9 tokens")
        chat.see("> ")
        chat.type("/quit\n")
        assert chat.wait() == 0
        assert ESCAPE not in chat.shown


def test_top(scripted: ServerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--once", "--base-url", scripted.url + "/"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"nextn top     {scripted.url}, since it was started\n")
    assert re.search(r"requests      0 running, 0 queued; \d+ received", out)
    assert "\x1b" not in out


def test_top_in_a_terminal(scripted: ServerProcess) -> None:
    """It takes the whole screen, follows its size and gives it back; `q` ends it."""
    with Terminal(["top", "--base-url", scripted.url, "--interval", "30"], rows=30, columns=100) as top:
        top.see("\x1b[?1049h")
        top.see("requests")
        top.see("━" * 36)
        top.see("q or Ctrl-C: quit")
        top.resize(24, 80)
        top.see("requests")
        top.see(f"{'━' * 16}\x1b[0m   0 %")  # by its size alone: the next look is far away
        top.type("q")
        assert top.wait() == 0
        assert b"\x1b[?1049l" in top.shown
        assert b"Traceback" not in top.shown


def test_ctrl_c_ends_top(scripted: ServerProcess) -> None:
    with Terminal(["top", "--base-url", scripted.url]) as top:
        top.see("requests")
        top.type("\x03")
        top.wait()
        assert b"\x1b[?1049l" in top.shown
        assert b"Traceback" not in top.shown


def test_a_plain_top(scripted: ServerProcess) -> None:
    """Frames follow one another."""
    options = ["--base-url", scripted.url, "--interval", "0.1"]
    with Terminal(["top", *options], environment={"TERM": "dumb"}) as top:
        for _ in range(3):
            top.see("requests      0 running")
        top.type("q")
        assert top.wait() == 0
        assert ESCAPE not in top.shown


def test_a_server_that_dies_and_comes_back(start: StartServer) -> None:
    with start() as server:
        port = server.url.rpartition(":")[2]
        assert httpx.post(server.url + "/v1/completions", json={"prompt": "x"}).status_code == 200
        with Terminal(["top", "--base-url", server.url, "--interval", "0.1"]) as top:
            top.see("over the last")
            server.kill()
            top.see("no answer; these numbers are old")
            top.see("requests")
            with start("--port", port):
                top.see("since it was started")
                top.see("over the last")
                top.type("q")
                assert top.wait() == 0


@pytest.mark.parametrize("command", [["chat"], ["top"], ["top", "--once"]])
def test_no_server(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--base-url", "http://127.0.0.1:9"]) == 1
    assert "`nextn serve` starts a server" in capsys.readouterr().err
