"""Lets gRPC's client use connections that Python opens, through a proxy or a relay.

gRPC can ask one HTTP proxy for a connection, which is not enough for a relay behind a proxy, and it consults the
environment. So it dials a Unix socket of this process, and each of its connections is continued by `connect`.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable

from pfl_node.errors import PflError
from pfl_node.wire.local_socket import LocalSocket
from pfl_node.wire.splice import Splice

log = logging.getLogger(__name__)

Connect = Callable[[], Awaitable[socket.socket]]
BACKLOG = 8


class Forwarder:
    """It is open until `close`. gRPC dials `target`, and redials it when the connection is lost."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[None]] = set()
        self._splices: set[Splice] = set()
        self._local = LocalSocket()
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listening.setblocking(False)
        self._listening.bind(self._local.path)
        self._listening.listen(BACKLOG)
        self._local.seal()
        self.target = self._local.target
        self._loop.add_reader(self._listening, self._accept)

    def close(self) -> None:
        self._loop.remove_reader(self._listening)
        self._listening.close()
        self._local.close()
        for task in self._opening:
            task.cancel()
        for splice in list(self._splices):
            splice.close()

    def _accept(self) -> None:
        try:
            near, _ = self._listening.accept()
        except OSError:
            return
        near.setblocking(False)
        task = self._loop.create_task(self._forward(near))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _forward(self, near: socket.socket) -> None:
        try:
            far = await self._connect()
        except (OSError, PflError) as error:
            log.debug("no connection: %s", error)
            near.close()
            return
        except BaseException:
            near.close()
            raise
        splice = Splice(near, far, on_end=self._splices.discard)
        self._splices.add(splice)
        splice.start()
