"""Drops two tracebacks that any caller can trigger and that help no operator.

gRPC: a call whose metadata or path is not UTF-8 makes grpc.aio log a UnicodeDecodeError (grpc/grpc-web#1236 shows
it for metadata; no upstream issue known for the path). A caller that disconnects while the server writes makes it
log an ExecuteBatchError (grpc/grpc#31043; logged instead of raised since grpc/grpc#32551).
"""

from __future__ import annotations

import logging

LOGGERS = ("grpc._cython.cygrpc", "asyncio")
GRPC_SOURCES = (".pyx.pxi", ".pyx")
DISCONNECTED = "ExecuteBatchError"  # a private class of gRPC


class GarbledMetadataFilter(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        error = (record.exc_info and record.exc_info[1]) or record.msg
        if isinstance(error, UnicodeDecodeError):
            return error is not record.msg and not _raised_by_grpc(error)
        return type(error).__name__ != DISCONNECTED


def install_log_filter() -> None:
    """Idempotent."""
    for name in LOGGERS:
        logger = logging.getLogger(name)
        if not any(isinstance(known, GarbledMetadataFilter) for known in logger.filters):
            logger.addFilter(GarbledMetadataFilter())


def _raised_by_grpc(error: BaseException) -> bool:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code.co_filename.endswith(GRPC_SOURCES)
