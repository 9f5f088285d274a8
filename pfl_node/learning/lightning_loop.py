"""Train a LightningModule with Lightning's own Trainer: its `training_step`, optimizers and schedulers.

`fit` is the adapter with Lightning's defaults; `fit_with(...)` passes arguments to the Trainer. The states of
optimizers and schedulers are kept over rounds, so that a schedule spans the run.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from logging import ERROR, getLogger
from typing import Any

from torch import nn

from pfl_node.errors import TaskError
from pfl_node.learning.fit_context import Fit, Work
from pfl_node.learning.optimizer_states import keep_states, load_states

QUIET: dict[str, Any] = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
    "limit_val_batches": 0,
    "max_epochs": 1,  # one pass per round: the batches come from `work`
}


class LightningBatches:
    """The batches of a training as Lightning reads them: (x, y), or x without labels."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def __len__(self) -> int:
        return self._work.number_of_batches

    def __iter__(self) -> Iterator[Any]:
        for batch in self._work.batches():
            yield batch.x if batch.y is None else (batch.x, batch.y)


def fit_with(**arguments: Any) -> Fit:
    """An adapter with arguments of lightning.Trainer, such as gradient_clip_val=1.0."""
    try:
        import lightning
    except ImportError:
        raise TaskError("fit = 'lightning' needs Lightning: pip install 'pfl-node[lightning]'") from None

    class Kept(lightning.Callback):
        """Continues with the optimizers of the round before."""

        def __init__(self, work: Work) -> None:
            self._work = work

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
            load_states(self._work.state, *_parts(trainer))

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
            keep_states(self._work.state, *_parts(trainer))

    def run(model: nn.Module, work: Work) -> None:
        if not isinstance(model, lightning.LightningModule):
            raise TaskError(f"fit = 'lightning': the model is a {type(model).__name__}, not a LightningModule")
        kind, index = work.device.type, work.device.index
        where = {"accelerator": kind, "devices": 1 if kind == "cpu" or index is None else [index]}
        getLogger("lightning.pytorch").setLevel(ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Lightning's advice about workers and loggers
            trainer = lightning.Trainer(**{**QUIET, **where, "callbacks": [Kept(work)], **arguments})
            trainer.fit(model, LightningBatches(work))

    return run


def _parts(trainer: Any) -> tuple[list[Any], list[Any]]:
    return list(trainer.optimizers), [config.scheduler for config in trainer.lr_scheduler_configs]


def fit(model: nn.Module, work: Work) -> None:
    fit_with()(model, work)
