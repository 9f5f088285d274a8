"""What of gRPC's own log is not worth a line."""

from __future__ import annotations

import logging
from importlib import import_module

import pytest

from pfl_node.wire.quirks.log_filter import LOGGERS, install_log_filter


def logged(name: str, error: Exception, caplog: pytest.LogCaptureFixture) -> bool:
    install_log_filter()
    caplog.clear()
    try:
        raise error
    except type(error):
        logging.getLogger(name).exception("raised in core by servicer method")
    return bool(caplog.records)


@pytest.mark.parametrize("name", LOGGERS)
def test_a_caller_that_hung_up_while_it_was_answered_is_not_worth_a_line(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    cygrpc = import_module("grpc._cython.cygrpc")
    assert not logged(name, cygrpc.ExecuteBatchError("execute_batch", (), ""), caplog)


@pytest.mark.parametrize("name", LOGGERS)
def test_an_error_of_the_own_code_is(name: str, caplog: pytest.LogCaptureFixture) -> None:
    assert logged(name, ValueError("a bug"), caplog)
    assert logged(name, UnicodeDecodeError("utf-8", b"\xff", 0, 1, "in the own code"), caplog)
