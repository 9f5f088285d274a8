"""What a node learns at its place of a run. Imports torch only when a learner is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pfl_node.learning.task import Place
from pfl_node.settings import Settings
from pfl_node.sim.attacks.label_flip import poisoned

if TYPE_CHECKING:
    from pfl_node.learning.learner import Learner
    from pfl_node.protocol.privacy.dp_account import DpAccount


def learner_at(settings: Settings, place: Place, account: DpAccount | None = None) -> Learner:
    """Of the settings' task."""
    from pfl_node.learning.learner import Learner
    from pfl_node.learning.tasks import load_task

    task = poisoned(load_task(settings.task, place), settings, place)
    return Learner(task, settings.train, settings.device, settings.privacy, account)
