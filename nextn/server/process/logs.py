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
    """For this process. `format`: text or json. `engine`: is it the engine's?"""
    handler = logging.StreamHandler(sys.stderr)
    text = TEXT_OF_THE_ENGINE if engine else TEXT
    handler.setFormatter(JsonLines() if format == "json" else Lines(text))
    logging.basicConfig(level=level.upper(), handlers=[handler])


class Lines(logging.Formatter):
    """A line break inside a message, which may quote a client, begins no line that looks like ours."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return super().formatMessage(record).replace("\n", "\n  ")


class JsonLines(logging.Formatter):
    """One object a line. What a record was given as `extra={"fields": {...}}` stands beside the rest."""

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.datetime.fromtimestamp(record.created, datetime.timezone.utc)
        told: dict[str, object] = {
            "time": when.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if request_id.get():
            told["request_id"] = request_id.get()
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode({**getattr(record, "fields", {}), **told}).decode()
