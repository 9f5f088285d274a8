"""The in-memory store of a simulated node. Its `Disk` survives crashes of the node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pfl_node.errors import ConfigError
from pfl_node.model import Layout, LocalState, Model
from pfl_node.node.ports import Kept, LearnerFacts
from pfl_node.store.data_dir import NodeIdentity

if TYPE_CHECKING:
    from pfl_node.protocol.privacy.controls import PrivacyControls
    from pfl_node.settings import Settings
    from pfl_node.sim.node_process import Process
    from pfl_node.sim.simulation import World

DAEMON_ONLY_FIELDS = {"round": "learning_seconds", "finished": "how"}  # fields left out of a simulation's journal


@dataclass
class Disk:
    """Everything a node has persisted."""

    privacy: PrivacyControls
    checkpoint: Mapping[str, Any] | None = None
    reports: int = 0
    last_events: dict[str, Any] = field(default_factory=dict)  # the latest data of each event
    figures: dict[str, float] = field(default_factory=dict)  # the latest metrics
    lives: int = 0

    def dump(self) -> dict[str, Any]:
        """The state that the next segment of a run needs besides the checkpoint. `lives` is left out: it starts at
        0 again."""
        kept = {"reports": self.reports, "told": self.last_events, "figures": self.figures}
        return {**kept, "privacy": self.privacy.dump()}


class MemoryStore:
    """One node's store port; every restart of the node gets a new one."""

    saves_models = False

    def __init__(self, process: Process, world: World) -> None:
        self._me = process
        self._world = world
        self._disk = process.disk
        self._disk.lives += 1
        self.identity = NodeIdentity(process.id, self._disk.lives)
        self._cut = False

    @property
    def slot(self) -> int:
        raise ConfigError("a simulated node has no numbered directory")

    def keep_incarnation(self, incarnation: int) -> None: ...
    def open_journal(self) -> None: ...
    def sync(self) -> None: ...
    def close_journal(self) -> None: ...
    def close(self) -> None: ...
    def last_round(self) -> int | None:
        return None

    def write(self, event: str, data: Mapping[str, Any]) -> None:
        if self._cut:
            return
        row = {key: value for key, value in data.items() if key != DAEMON_ONLY_FIELDS.get(event)}
        self._disk.last_events[event] = row
        figures = {key: row[key] for key in row if key.startswith(("val_", "test_"))}
        self._disk.figures |= figures if event in ("round", "finished") else {}
        if event == "round":
            self._disk.reports += 1
            if (row["round"] + 1) % self._world.settings.eval.every == 0:
                row["bytes_sent"] = self._me.traffic.bytes_sent
        self._world.journal.write(self._world.clock.now, self._me.id, event, **row)
        if event == "round":
            self._world.reported()

    def load_checkpoint(self, layout: Layout, facts: Mapping[str, str]) -> Kept | None:  # noqa: ARG002
        return Kept(self._disk.checkpoint) if self._disk.checkpoint is not None else None

    def save_checkpoint(
        self,
        state: Mapping[str, Any],
        layout: Layout,  # noqa: ARG002
        facts: Mapping[str, str],  # noqa: ARG002
    ) -> None:
        if not self._cut:
            self._disk.checkpoint = state

    def save_model(
        self,
        model: Model,
        learner: LearnerFacts,
        facts: Mapping[str, str],
        state: LocalState | None = None,
        *,
        best: bool = False,
    ) -> None: ...

    def privacy(self, settings: Settings, *, certain: bool) -> PrivacyControls:  # noqa: ARG002
        return self._disk.privacy

    def cut(self) -> None:
        """The process is gone: ignore further writes."""
        self._cut = True
