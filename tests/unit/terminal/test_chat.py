"""The lines of a conversation; tests/e2e/test_terminal.py has one with a server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from nextn.bench.errors import BenchError
from nextn.terminal import chat as module
from nextn.terminal.chat import COMMANDS, Chat, ChatOptions, greeting, summary

USER, ANSWER = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "a"}


class Scripted(Chat):
    """Answers "a", then what `fail` raises."""

    fail: BaseException | None = None

    async def _stream(self, parts: list[str], show: Callable[[str], None]) -> str:
        parts.append("a")
        show("a")
        if self.fail is not None:
            raise self.fail
        return "said"


def test_commands() -> None:
    chat = Chat(ChatOptions("http://server", "m", temperature=0.0))
    assert chat.command("hello /clear") is None
    assert chat.command(" /clear") is None
    assert chat.command("/system  be brief ") == "the system message is set"
    chat.messages = [USER]
    assert chat.body()["messages"] == [{"role": "system", "content": "be brief"}, USER]
    assert "speculative" not in chat.body()
    assert chat.command("/nomtp") == "drafts: none"
    assert chat.body()["speculative"] is False
    assert chat.command("/mtp") == "drafts: the server's"
    assert "speculative" not in chat.body()
    chat.command("/clear")
    chat.command("/system")
    assert chat.body()["messages"] == []
    assert "not a command" in (chat.command("/usr/bin") or "")
    for name in COMMANDS:
        assert name in module.HELP
        assert "not a command" not in (chat.command(name) or "")
    assert chat.ended


def test_what_is_not_asked_for_is_the_servers() -> None:
    assert Chat(ChatOptions("http://server")).body() == {"messages": [], "return_spec_tokens_details": True}


def test_the_conversation_grows() -> None:
    chat, shown = Scripted(ChatOptions("")), list[str]()
    assert asyncio.run(chat.answer("hi", shown.append)) == "said"
    assert shown == ["a"]
    assert chat.messages == [USER, ANSWER]


@pytest.mark.parametrize(
    ("fail", "left"), [(BenchError("no"), []), (asyncio.CancelledError(), [USER, ANSWER])]
)
def test_answers_that_end_early(fail: BaseException, left: list[object]) -> None:
    """One that failed can be asked for again; of one that was stopped the model sees what came."""
    chat = Scripted(ChatOptions(""))
    chat.fail = fail
    with pytest.raises(type(fail)):
        asyncio.run(chat.answer("hi", lambda text: None))
    assert chat.messages == left


def test_summary() -> None:
    spec = {"verify_steps": 9, "accept_length": 2.111, "proposed": [9, 9], "accepted": [7, 3]}
    assert summary({"completion_tokens": 20, "spec_details": spec}, [0.01, 0.1]) == (
        "20 tokens, accept length 2.11 (78% 33%), TTFT 10 ms, 200 tok/s"
    )
    plain = {"verify_steps": 9, "accept_length": 1.0, "proposed": [], "accepted": []}
    assert summary({"completion_tokens": 10, "spec_details": plain}, [0.1]) == (
        "10 tokens, accept length 1.00, TTFT 100 ms, 100 tok/s"
    )
    assert summary({}, []) == "0 tokens"


@pytest.mark.parametrize(
    ("card", "embedded"),
    [
        ({"id": "nextn-tiny"}, True),
        ({"id": "mine", "root": "/package/data/nextn-tiny"}, True),
        ({"id": "nextn-tiny", "root": "/models/other"}, False),
        ({"id": "DeepSeek-V3"}, False),
    ],
)
def test_what_the_model_is_for(card: dict[str, str], embedded: bool) -> None:
    lines = greeting("http://server", card, 0.0 if embedded else None).splitlines()
    assert lines[0] == f"{card['id']} on http://server"
    assert any("completes Python code, greedily" in line for line in lines) == embedded
    assert any("def read_lines(path):" in line for line in lines) == embedded
    assert lines[-1].startswith("commands: /clear /system /nomtp /mtp /help /quit")
    if embedded:
        assert "at temperature 0.7" in greeting("http://server", card, 0.7)
