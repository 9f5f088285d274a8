"""`pfl_node.Node`: a node inside a Python program or notebook, over real connections."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from pfl_node.daemon.assemble import DaemonNode
from pfl_node.daemon.disk_store import DiskStore
from pfl_node.daemon.preflight import check
from pfl_node.daemon.tls_setup import check_pair_keys
from pfl_node.learning.trainer import TrainerThread
from pfl_node.node.startup import check_lab
from pfl_node.ops.logs import configure_logs
from pfl_node.ops.loop import run_loop
from pfl_node.ops.status import facts_of, status_of
from pfl_node.policies import load_policy
from pfl_node.policies.base import Policy
from pfl_node.settings.load import settings_of_call
from pfl_node.tracking.tracking import EVENTS, report_of
from pfl_node.types import RoundReport

if TYPE_CHECKING:
    from torch import nn

Named = str | Mapping[str, Any]  # a name, or a name and options


class Node:
    """One node. `await node.run()` in a coroutine or a notebook, `node.run_blocking()` in a script.

    `task` and `policy` are names, functions or classes, or mappings with `name` and options; `peers` are addresses
    of members to join through. Other settings are given by section: `train={"lr": 0.1}`. `on_round` is called with
    a RoundReport after every round, in the event loop: it should return soon, and may call `stop`.
    """

    def __init__(
        self,
        task: Named | Callable[..., Any] = "digits",
        policy: Named | type[Policy] = "pens",
        peers: Sequence[str] = (),
        on_round: Callable[[RoundReport], object] | None = None,
        *,
        rounds: int | None = None,
        seed: int = 0,
        data_dir: str | Path | None = None,
        **settings: Any,
    ) -> None:
        given = {"log": {"level": "warning"}, **settings, "peer_seed": tuple(peers) or settings.get("peer_seed")}
        self.settings = settings_of_call(
            "Node()", task=task, policy=policy, rounds=rounds, seed=seed, data_dir=data_dir, **given
        )
        check(self.settings)
        check_lab(load_policy(self.settings.policy.name), self.settings, lab=False)
        check_pair_keys(self.settings)
        self._on_round = on_round
        self._node: DaemonNode | None = None
        self._trainer: TrainerThread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = threading.Event()
        self._ended = False

    # -- running -------------------------------------------------------------------------------------------

    async def start(self) -> str:
        """Open the port, and return the address that other nodes join through. `run` does it if you do not."""
        if self._ended:
            raise RuntimeError("this node has ended: make a new Node with the same data_dir, which continues")
        if self._node is not None:
            return self.address
        if not structlog.is_configured():
            configure_logs(self.settings.log)
        self._loop = asyncio.get_running_loop()
        self._trainer = TrainerThread()
        home = DiskStore.open(self._directory())
        try:
            self._node = DaemonNode(self.settings, home, self._trainer, self._observe)
        except BaseException:
            home.close()
            raise
        try:
            await self._node.start()
        except BaseException:
            await self.close()
            raise
        return self.address

    async def run(self) -> str:
        """Returns "done" after the last round or "stopped" after `stop`, when the state is written."""
        await self.start()
        assert self._node is not None
        try:
            if self._stopped.is_set():
                self._node.stop()
            return await self._node.run()
        finally:
            await self.close()

    def run_blocking(self) -> str:
        """`run` for a program without an event loop. Ctrl-C shuts the node down cleanly."""
        if asyncio._get_running_loop() is not None:
            raise RuntimeError("an event loop is running here, as in a notebook: use `await node.run()`")
        return run_loop(self._run_with_signals())

    def stop(self) -> None:
        """Make `run` shut down cleanly; may be called from any thread, and before `run`."""
        self._stopped.set()
        if self._node is not None and self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed: the node has ended
                self._loop.call_soon_threadsafe(self._node.stop)

    async def close(self) -> None:
        """Release port and directory. `run` does it; needed only after `start` without `run`."""
        self._ended = True
        if self._node is not None:
            await self._node.close()
        if self._trainer is not None:
            await self._trainer.close()
            self._trainer = None

    # -- what it does --------------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        """HOST:PORT for the `peers` of other nodes; empty before `start`."""
        return self._node.address if self._node else ""

    @property
    def data_dir(self) -> Path | None:
        """Where the node writes journal, checkpoints and model; None before `start`."""
        return self._node.home.path if self._node else self.settings.data_dir

    @property
    def round(self) -> int:
        return self._node.policy.round if self._node and self._node.policy else 0

    @property
    def state(self) -> str:
        """starting, joining, training, done or leaving."""
        return self._node.state if self._node else "starting"

    def status(self) -> dict[str, Any]:
        """What `pfl-node status` shows; call it in the event loop while the node runs."""
        return facts_of(status_of(self._node)) if self._node else {}

    def model(self) -> nn.Module:
        """The personal model of the last checkpoint, as `pfl_node.load` loads it."""
        from pfl_node.learning.personal_model import load

        if self.data_dir is None:
            raise RuntimeError("the node has not started: it has no model yet")
        return load(self.data_dir)

    # -- parts ---------------------------------------------------------------------------------------------

    def _directory(self) -> Path | None:
        """A new directory is readable only by this user: it holds a model trained on private data."""
        if (path := self.settings.data_dir) is not None and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            os.mkdir(path, 0o700)
        return path

    async def _run_with_signals(self) -> str:
        loop = asyncio.get_running_loop()
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, self.stop)
        return await self.run()

    def _observe(self, event: str, data: Mapping[str, Any]) -> None:
        """An error in `on_round` ends neither the round nor the node; it is logged with its place."""
        if self._on_round is None or event not in EVENTS or self._node is None:
            return
        try:
            self._on_round(report_of(self._node.id, self._node.name, event, {"round": self.round, **data}))
        except Exception as error:
            structlog.get_logger(__name__).warning("on_round failed; training goes on", exc_info=error)
