"""Build the learner of a place. Imports torch only when a learner is built."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pfl_node.learning.malloc import keep_memory
from pfl_node.learning.task import Place, Task
from pfl_node.settings import Settings

if TYPE_CHECKING:
    from pfl_node.learning.learner import Learner
    from pfl_node.protocol.privacy.dp_account import DpAccount

Poison = Callable[[Task, Settings, Place], Task]
GARBAGE = 20_000  # gc threshold while torch is imported


def learner_at(
    settings: Settings, place: Place, account: DpAccount | None = None, poison: Poison | None = None
) -> Learner:
    """The learner of the configured task at this place. `poison` changes the task of a malicious node."""
    keep_memory()
    with _rare_collections():
        from pfl_node.learning.devices import device_at
        from pfl_node.learning.learner import Learner
        from pfl_node.learning.tasks import load_task

    task = load_task(settings.task, place, settings.data)
    if poison is not None:
        task = poison(task, settings, place)
    student = settings.policy.options.get("student_model")
    learner = Learner(
        task,
        settings.train,
        device_at(settings.device, place),
        settings.privacy,
        account,
        student,
        data=settings.data,
        eval_batch=settings.eval.batch,
        rounds=settings.rounds,
    )
    learner.source = lambda: learner_at(settings, place, learner.account, poison)
    return learner


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Importing torch creates 190,000 objects, and nearly all of them stay. At the default threshold of 700,
    Python searches them for garbage 400 times, which takes a tenth of the import's CPU time."""
    often = gc.get_threshold()
    gc.set_threshold(GARBAGE, *often[1:])
    try:
        yield
    finally:
        gc.set_threshold(*often)
