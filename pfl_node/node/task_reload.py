"""Calls the task again while the node runs: new data, same model, round and local state."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pfl_node.errors import PflError, TaskError
from pfl_node.node.ports import Job, LearnerFacts, Log, Observer
from pfl_node.plugin import users_fault
from pfl_node.policies.base import Policy

if TYPE_CHECKING:
    from pfl_node.node.local_state import StatefulTrainer
    from pfl_node.node.recorder import Recorder


class TaskReload:
    """`await now()`. If the task fails or returns another model, the old data stays in use."""

    def __init__(
        self,
        task: str,
        trainer: StatefulTrainer,
        policy: Policy,
        learner: LearnerFacts,
        recorder: Recorder,
        *,
        observer: Observer,
        log: Log,
    ) -> None:
        self._task = task
        self._trainer = trainer
        self._policy = policy
        self._learner = learner
        self._recorder = recorder
        self._observer = observer
        self._log = log
        self._running: asyncio.Task[dict[str, int]] | None = None

    async def now(self) -> dict[str, int]:
        """The number of samples by split. Raises TaskError. Requests that arrive meanwhile share the result."""
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._reload())
        return await asyncio.shield(self._running)

    async def every(self, seconds: float) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(seconds)
            try:
                await self.now()
            except TaskError:
                continue  # already logged; the next call may succeed

    async def _reload(self) -> dict[str, int]:
        try:
            samples: dict[str, int] = await self._trainer.do(Job("reload"))
        except Exception as error:
            fault = error if isinstance(error, PflError) else users_fault("task", self._task, error, TaskError)
            if fault is None:
                raise
            line = " ".join(str(fault).split())
            self._log.warning("the task was not reloaded; the old data stays in use", error=line)
            self._observer.tell("reload_failed", {"error": line})
            raise TaskError(line) from error
        self._policy.samples = self._learner.samples
        row = {"round": self._policy.round, "samples": samples["train"], "by_split": samples}
        self._recorder.write("reloaded", row)
        self._observer.tell("reloaded", row)
        self._log.info("the task was reloaded", **row)
        return samples
