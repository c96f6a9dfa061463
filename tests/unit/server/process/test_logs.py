"""Log lines: one record, one line that can be read back, with the request it belongs to."""

from __future__ import annotations

import json
import logging

from nextn.server.http.middleware import USABLE
from nextn.server.process.logs import TEXT, JsonLines, Lines, dp_rank
from nextn.server.protocol.context import request_id


def record(message: str, *args: object, **extra: object) -> logging.LogRecord:
    return logging.getLogger("nextn.x").makeRecord(
        "nextn.x", logging.WARNING, "f.py", 1, message, args, None, extra=extra
    )


def test_json() -> None:
    token = request_id.set("abc")
    try:
        line = JsonLines().format(record("it is %s\nso", "€", fields={"ttft": 0.5, "level": "mine"}))
    finally:
        request_id.reset(token)
    assert "\n" not in line
    shown = json.loads(line)
    assert shown.pop("time").endswith("+00:00")
    assert shown == {
        "level": "warning", "logger": "nextn.x", "message": "it is €\nso", "request_id": "abc", "ttft": 0.5,
    }  # fmt: skip


def test_json_of_an_exception_outside_of_requests() -> None:
    try:
        raise RuntimeError("oh")
    except RuntimeError as e:
        failed = record("failed")
        failed.exc_info = (RuntimeError, e, e.__traceback__)
    shown = json.loads(JsonLines().format(failed))
    assert shown["exception"].startswith("Traceback")
    assert "request_id" not in shown


def test_text_forges_no_line() -> None:
    lines = Lines(TEXT).format(record("asked for %s", "x\n2026-01-01 INFO: all is well")).split("\n")
    assert lines[1] == "  2026-01-01 INFO: all is well"


def test_lines_of_a_replica() -> None:
    """Of the process that is it, and of a task of the HTTP process about it."""
    assert Lines(TEXT).format(record("so")).endswith(" WARNING: so")
    assert Lines(TEXT, 1).format(record("so")).endswith(" WARNING: [dp1] so")
    assert json.loads(JsonLines(1).format(record("so")))["dp_rank"] == 1
    assert "dp_rank" not in json.loads(JsonLines().format(record("so")))
    token = dp_rank.set(0)
    try:
        assert Lines(TEXT).format(record("so")).endswith(" WARNING: [dp0] so")
        assert json.loads(JsonLines().format(record("so")))["dp_rank"] == 0
    finally:
        dp_rank.reset(token)


def test_ids_that_may_be_echoed() -> None:
    assert USABLE.fullmatch(b"req_1-ABC:9")
    for given in (b"", b"a b", b"x" * 129, b"a\nb", "é".encode()):
        assert not USABLE.fullmatch(given)
