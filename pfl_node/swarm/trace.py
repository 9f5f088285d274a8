"""What an experiment records of a node in a swarm: every event with the bytes sent so far, the senders of accepted
models, and every few rounds a state to resume from."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pfl_node.daemon.assemble import DaemonNode
from pfl_node.node.recorder import checkpoint_facts
from pfl_node.ops.status import details_of
from pfl_node.store.checkpoint import save_checkpoint
from pfl_node.store.journal import Journal
from pfl_node.swarm.messages import TraceSpec, events_path, state_path
from pfl_node.types import PeerId

OnSaved = Callable[[dict[str, Any]], None]


class Trace:
    """The records of one node. Pass every row of its journal to `observe`."""

    def __init__(self, spec: TraceSpec, node: DaemonNode, index: int, out: Path, on_saved: OnSaved) -> None:
        self._spec = spec
        self._node = node
        self._index = index
        self._out = out
        self._on_saved = on_saved
        self._file = events_path(out, node.name)
        self._journal = Journal(self._file)
        self._accepted: Counter[PeerId] = Counter()
        self._part: int | None = None  # the last saved one
        self._saves: list[asyncio.Task[None]] = []

    def observe(self, event: str, data: Mapping[str, Any]) -> None:
        """Called right after the node has written the row, before it does anything else."""
        match event, data:
            case "started", {"round": int(round)}:
                self._part = round // self._spec.every
                self._write(event, data)
            case "round", {"round": int(round)}:
                self._round(round, data)
            case _:
                self._write(event, data)

    async def close(self) -> None:
        """Wait until all states are on disk. Raises the first error of saving one."""
        try:
            await asyncio.gather(*self._saves)
        finally:
            self._journal.close()

    def _round(self, round: int, data: Mapping[str, Any]) -> None:
        if self._spec.messages:
            for sender in (self._node.host.received - self._accepted).elements():
                self._write("taken", {"from": sender, "call": "send", "round": round})
            self._accepted = Counter(self._node.host.received)
        details = details_of(self._node)
        self._write("round", {**data, "bytes_sent": self._spec.sent[self._index] + details["bytes_sent"]})
        policy = self._node.policy
        assert policy is not None
        if policy.rounds is None or policy.round + 1 < policy.rounds:
            self._save_state(policy.round + 1, details)

    def _save_state(self, after: int, details: dict[str, Any]) -> None:
        """At a Report the state is consistent: take a snapshot now, write it in the background."""
        part = after // self._spec.every
        if self._part is not None and part <= self._part:
            return
        self._part = part
        assert self._node.policy is not None
        facts = {"part": part, "index": self._index, "round": after, "details": details}
        save = self._save(part, self._node.policy.snapshot(), {**facts, "rows": self._file.stat().st_size})
        self._saves.append(asyncio.create_task(save))

    async def _save(self, part: int, state: Mapping[str, Any], facts: dict[str, Any]) -> None:
        node, path = self._node, state_path(self._out, part, self._node.name)
        assert node.policy is not None
        assert node.recorder is not None
        path.parent.mkdir(parents=True, exist_ok=True)
        same = checkpoint_facts(node.settings, node.policy)
        layout = node.recorder.learner.layout
        await asyncio.to_thread(lambda: save_checkpoint(path, state, layout, told=None, **same))
        self._on_saved(facts)

    def _write(self, event: str, data: Mapping[str, Any]) -> None:
        now = self._spec.seconds + time.time() - self._spec.began
        self._journal.write(event, {**data, "node": self._node.id}, time=now)
