"""What gRPC's Python logs of callers who send bytes that are no text, or hang up while they are answered: a
traceback each, which helps nobody."""

from __future__ import annotations

import logging

LOGGERS = ("grpc._cython.cygrpc", "asyncio")
GRPC = (".pyx.pxi", ".pyx")  # where gRPC's own code is
HUNG_UP = "ExecuteBatchError"  # a message could not be written; a private class of gRPC's


class GarbledMetadataFilter(logging.Filter):
    """Lets everything pass but that."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = (record.exc_info and record.exc_info[1]) or record.msg
        if isinstance(error, UnicodeDecodeError):
            return error is not record.msg and not _from_grpc(error)
        return type(error).__name__ != HUNG_UP


def install_log_filter() -> None:
    """May be called again."""
    for name in LOGGERS:
        logger = logging.getLogger(name)
        if not any(isinstance(known, GarbledMetadataFilter) for known in logger.filters):
            logger.addFilter(GarbledMetadataFilter())


def _from_grpc(error: BaseException) -> bool:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code.co_filename.endswith(GRPC)
