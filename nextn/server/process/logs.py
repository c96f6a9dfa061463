"""Log lines on stderr: text for people, JSON for machines. Both processes of a server use it."""

from __future__ import annotations

import datetime
import logging
import sys
from contextvars import ContextVar

import msgspec

from nextn.server.protocol.context import request_id

TEXT = "%(asctime)s %(levelname)s: %(replica)s%(message)s"
TEXT_OF_THE_ENGINE = "%(asctime)s %(levelname)s %(name)s: %(replica)s%(message)s"
# The replica that the running task is about, if there are several.
dp_rank: ContextVar[int | None] = ContextVar("dp_rank", default=None)


def configure(level: str, format: str, engine: bool = False, rank: int | None = None) -> None:
    """Configures logging of this process. `format`: text or json. `engine`: whether this is the engine
    process. `rank`: number of this replica, if there are several."""
    handler = logging.StreamHandler(sys.stderr)
    text = TEXT_OF_THE_ENGINE if engine else TEXT
    handler.setFormatter(JsonLines(rank) if format == "json" else Lines(text, rank))
    logging.basicConfig(level=level.upper(), handlers=[handler])


class Lines(logging.Formatter):
    """Indents lines after a line break in a message, because it may quote a client's text, which must not
    look like a log line."""

    def __init__(self, text: str, rank: int | None = None) -> None:
        super().__init__(text)
        self.rank = rank

    def formatMessage(self, record: logging.LogRecord) -> str:
        rank = dp_rank.get() if self.rank is None else self.rank
        record.replica = "" if rank is None else f"[dp{rank}] "
        return super().formatMessage(record).replace("\n", "\n  ")


class JsonLines(logging.Formatter):
    """Formats each record as one JSON object on one line. It includes the record's
    `extra={"fields": {...}}`."""

    def __init__(self, rank: int | None = None) -> None:
        super().__init__()
        self.rank = rank

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.datetime.fromtimestamp(record.created, datetime.timezone.utc)
        line: dict[str, object] = {
            "time": when.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        rank = dp_rank.get() if self.rank is None else self.rank
        if rank is not None:
            line["dp_rank"] = rank
        if request_id.get():
            line["request_id"] = request_id.get()
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode({**getattr(record, "fields", {}), **line}).decode()
