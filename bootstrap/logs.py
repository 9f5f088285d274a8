"""Logging to stderr, as text or JSON, without structlog, which would take a quarter of the memory."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from pfl_node.ops.log_lines import LogLimit, for_people
from pfl_node.printable import printable

PLAIN = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


def configure_logs(level: str, format: str) -> None:
    people = for_people(format, sys.stderr)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(People() if people else Json())
    if level != "debug":
        handler.addFilter(LogLimit())
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    for noisy in ("asyncio", "grpc"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


class People(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        words = " ".join(f"{key}={value}" for key, value in _extra(record).items())
        line = printable(f"{moment} [{record.levelname.lower()}] {record.getMessage()} {words}".rstrip())
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        facts = {
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat().replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **_extra(record),
        }
        if record.exc_info:
            facts["exception"] = self.formatException(record.exc_info)
        return printable(json.dumps(facts, default=str, ensure_ascii=False))


def _extra(record: logging.LogRecord) -> dict[str, object]:
    return {key: value for key, value in record.__dict__.items() if key not in PLAIN}
