"""Logs are one event per line, whoever logs, and never on stdout."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from pfl_node.ops.logs import configure_logs
from pfl_node.settings import LogSettings


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    structlog.reset_defaults()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_without_a_terminal_a_line_is_a_json_object() -> None:
    stream = io.StringIO()
    configure_logs(LogSettings(), stream, worker=3)
    structlog.get_logger("pfl_node.node.lifecycle").info("joined", peers=2)
    event = json.loads(stream.getvalue())
    assert list(event) == ["timestamp", "level", "event", "worker", "peers"]
    assert (event["level"], event["event"], event["worker"], event["peers"]) == ("info", "joined", 3, 2)


def test_the_standard_librarys_loggers_go_the_same_way() -> None:
    stream = io.StringIO()
    configure_logs(LogSettings(), stream)
    logging.getLogger("somewhere").warning("%d left", 3, extra={"peer": "a"})
    event = json.loads(stream.getvalue())
    assert (event["event"], event["level"], event["peer"]) == ("3 left", "warning", "a")


def test_an_exception_stays_on_its_line() -> None:
    stream = io.StringIO()
    configure_logs(LogSettings(), stream)
    try:
        raise ValueError("no")
    except ValueError:
        structlog.get_logger().exception("failed")
    (line,) = stream.getvalue().splitlines()
    assert "ValueError: no" in json.loads(line)["exception"]


def test_on_a_terminal_it_is_coloured_text() -> None:
    stream = Terminal()
    configure_logs(LogSettings(), stream)
    structlog.get_logger().info("joined", peers=2)
    assert "\x1b[" in stream.getvalue()
    assert "joined" in stream.getvalue()


def test_console_without_a_terminal_has_no_colours() -> None:
    stream = io.StringIO()
    configure_logs(LogSettings(format="console"), stream)
    structlog.get_logger().info("joined", peers=2)
    assert stream.getvalue()[8:] == " [info] joined peers=2\n"


def test_what_is_below_the_level_is_not_said() -> None:
    stream = io.StringIO()
    configure_logs(LogSettings(level="warning"), stream)
    structlog.get_logger().info("small talk")
    logging.getLogger("x").info("small talk")
    assert stream.getvalue() == ""


def test_the_libraries_are_quiet_even_when_we_debug() -> None:
    stream = io.StringIO()
    configure_logs(LogSettings(level="debug"), stream)
    logging.getLogger("asyncio").debug("Using selector")
    structlog.get_logger().debug("ours")
    assert len(stream.getvalue().splitlines()) == 1


def test_configured_twice_an_event_is_written_once() -> None:
    first, second = io.StringIO(), io.StringIO()
    configure_logs(LogSettings(), first)
    configure_logs(LogSettings(), second)
    structlog.get_logger().info("once")
    assert (first.getvalue(), second.getvalue().count("\n")) == ("", 1)


def test_nothing_goes_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(LogSettings())
    structlog.get_logger().info("joined")
    out, err = capsys.readouterr()
    assert out == ""
    assert "joined" in err
