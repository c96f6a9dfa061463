"""Log lines on stderr: text for people, JSON for machines. Both processes of a server use it."""

from __future__ import annotations

import datetime
import logging
import sys

import msgspec

from nextn.server.protocol.context import request_id

TEXT = "%(asctime)s %(levelname)s: %(message)s"
TEXT_OF_THE_ENGINE = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def configure(level: str, format: str, engine: bool = False) -> None:
    """Of this process. `format`: text or json. `engine`: is this the engine's process?"""
    handler = logging.StreamHandler(sys.stderr)
    text = TEXT_OF_THE_ENGINE if engine else TEXT
    handler.setFormatter(JsonLines() if format == "json" else Lines(text))
    logging.basicConfig(level=level.upper(), handlers=[handler])


class Lines(logging.Formatter):
    """Indents lines after a line break in a message: it may quote a client, and must not look like our
    lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return super().formatMessage(record).replace("\n", "\n  ")


class JsonLines(logging.Formatter):
    """One object a line. It includes what a record was given as `extra={"fields": {...}}`."""

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.datetime.fromtimestamp(record.created, datetime.timezone.utc)
        line: dict[str, object] = {
            "time": when.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if request_id.get():
            line["request_id"] = request_id.get()
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode({**getattr(record, "fields", {}), **line}).decode()
