"""Logging: one event per line on stderr, coloured text for people or JSON for programs. stdout is for results."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TextIO

import structlog
from structlog.stdlib import ProcessorFormatter

from pfl_node.ops.log_lines import LogLimit, for_people
from pfl_node.printable import printable

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor, WrappedLogger

    from pfl_node.settings import LogSettings

NOISY = ("asyncio", "grpc", "grpc._cython.cygrpc", "uvicorn", "uvicorn.error")  # shown from warnings on


def configure_logs(settings: LogSettings, stream: TextIO | None = None, **bound: Any) -> None:
    """Send all logs of this process, of structlog and logging, to the stream (None: stderr).

    `bound` is part of every event, for example worker=3. The last call wins.
    """
    stream = stream or sys.stderr
    level = logging.getLevelNamesMapping()[settings.level.upper()]
    people = for_people(settings.format, stream)
    shared = [*_shared(people, bound), _escaped]
    structlog.configure(
        processors=[*shared, ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(ProcessorFormatter(foreign_pre_chain=shared, processors=_endings(people, stream)))
    if level > logging.DEBUG:
        handler.addFilter(LogLimit())
    logging.basicConfig(handlers=[handler], level=level, force=True)
    for name in NOISY:
        logging.getLogger(name).setLevel(max(level, logging.WARNING))


def _shared(people: bool, bound: Mapping[str, Any]) -> list[Processor]:
    """Processors for the events of structlog and logging."""
    stamp = structlog.processors.TimeStamper

    def bind(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:  # noqa: ARG001
        return {**bound, **event}

    return [
        bind,
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.ExtraAdder(),
        stamp("%H:%M:%S", utc=False) if people else stamp("iso", utc=True),
    ]


def _endings(people: bool, stream: TextIO) -> list[Processor]:
    if people:
        renderer = structlog.dev.ConsoleRenderer(
            colors=stream.isatty(),
            pad_event_to=0,
            pad_level=False,
            sort_keys=False,
            exception_formatter=structlog.dev.plain_traceback,  # the default shows local variables
        )
        return [ProcessorFormatter.remove_processors_meta, renderer]
    return [
        ProcessorFormatter.remove_processors_meta,
        structlog.processors.format_exc_info,
        _event_first,
        structlog.processors.JSONRenderer(default=str, ensure_ascii=False),
    ]


def _escaped(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:  # noqa: ARG001
    """Many lines contain names and texts of peers: none may end a line or control the terminal."""
    return {key: printable(value) if isinstance(value, str) else value for key, value in event.items()}


def _event_first(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:  # noqa: ARG001
    """Put the keys that every line has first."""
    first = {key: event.pop(key) for key in ("timestamp", "level", "event") if key in event}
    return {**first, **event}
