"""The Store port of the daemon: a data directory."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from pfl_node import __version__
from pfl_node.model import Layout, LocalState, Model
from pfl_node.node.ports import Kept, LearnerFacts
from pfl_node.protocol.privacy.controls import PrivacyControls, privacy_of
from pfl_node.settings import Settings
from pfl_node.store.checkpoints import Checkpoints
from pfl_node.store.data_dir import DataDir
from pfl_node.store.journal import Journal, last_round
from pfl_node.store.model_file import FORMAT, save_model
from pfl_node.store.privacy_ledger import PrivacyLedger


class DiskStore(DataDir):
    saves_models = True
    _journal: Journal | None = None

    def open_journal(self) -> None:
        self._journal = Journal(self.journal)

    def write(self, event: str, data: Mapping[str, Any]) -> None:
        assert self._journal is not None
        self._journal.write(event, data, time=time.time())

    def sync(self) -> None:
        assert self._journal is not None
        self._journal.sync()

    def last_round(self) -> int | None:
        return last_round(self.journal)

    def load_checkpoint(self, layout: Layout, facts: Mapping[str, str]) -> Kept | None:
        found = Checkpoints(self.checkpoint).load(layout, **facts)
        return Kept(found.state, found.path.name, found.facts.get("node")) if found else None

    def save_checkpoint(self, state: Mapping[str, Any], layout: Layout, facts: Mapping[str, str]) -> None:
        who = self.identity
        metadata = {"node": who.id, "incarnation": str(who.incarnation), "version": __version__}
        Checkpoints(self.checkpoint).save(state, layout, metadata=metadata, **facts)

    def save_model(
        self,
        model: Model,
        learner: LearnerFacts,
        facts: Mapping[str, str],
        state: LocalState | None = None,
        *,
        best: bool = False,
    ) -> None:
        tensors: Any = learner
        given = (model,) if state is None else (model, state)
        save_model(self.best if best else self.model, tensors.tensors(*given), format=FORMAT, **facts)

    def privacy(self, settings: Settings, *, certain: bool) -> PrivacyControls:
        return privacy_of(settings, PrivacyLedger(self.path), certain=certain)

    def close_journal(self) -> None:
        if self._journal:
            self._journal.close()
