"""Which place of a run a node is, and what it learns there. Imports torch only when a learner is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pfl_node.learning.task import Place
from pfl_node.settings import Settings
from pfl_node.sim.attacks.label_flip import poisoned

if TYPE_CHECKING:
    from pfl_node.learning.learner import Learner
    from pfl_node.protocol.privacy.dp_account import DpAccount
    from pfl_node.store.data_dir import DataDir


def place_of(settings: Settings, home: DataDir) -> Place:
    """A node's own; its index is None when nobody said."""
    task = settings.task
    index = home.slot if task.index == "slot" else task.index
    return Place(index=index, nodes=task.nodes, seed=settings.seed, node_id=home.identity.id)


def learner_of(settings: Settings, home: DataDir, account: DpAccount) -> Learner:
    """Of a real node."""
    return learner_at(settings, place_of(settings, home), account)


def learner_at(settings: Settings, place: Place, account: DpAccount | None = None) -> Learner:
    """Of the settings' task."""
    from pfl_node.learning.learner import Learner
    from pfl_node.learning.tasks import load_task

    task = poisoned(load_task(settings.task, place), settings, place)
    return Learner(task, settings.train, settings.device, settings.privacy, account)
