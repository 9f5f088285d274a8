"""Train a Hugging Face model, with or without PEFT, with transformers.Trainer.

`fit` is the adapter with the learning rate of `[train]`; `fit_with(...)` passes TrainingArguments. The optimizer's
state is kept over rounds. A schedule of TrainingArguments would span one round, so that of `[train]` is used.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from typing import Any

from torch import nn

from pfl_node.errors import TaskError
from pfl_node.learning.fit_context import Fit, Work
from pfl_node.learning.optimizer_states import keep_states, load_states


class TrainerBatches:
    """The batches of a training as keyword arguments of the model, with the labels as `labels`."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def __len__(self) -> int:
        return self._work.number_of_batches

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in self._work.batches():
            x = batch.x if isinstance(batch.x, dict) else {"input_ids": batch.x}
            yield x if batch.y is None else {**x, "labels": batch.y}


def fit_with(**arguments: Any) -> Fit:
    """An adapter with arguments of transformers.TrainingArguments, such as weight_decay=0.01."""
    try:
        import transformers
    except ImportError:
        raise TaskError("fit = 'transformers' needs transformers: pip install 'pfl-node[hf]'") from None

    def run(model: nn.Module, work: Work) -> None:
        class Trainer(transformers.Trainer):
            def get_train_dataloader(self) -> Any:
                return TrainerBatches(work)

        class Continue(transformers.TrainerCallback):
            """Continues with the optimizer of the round before, at this round's learning rate."""

            def on_train_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:  # noqa: ARG002
                rates = [group["lr"] for group in parts["optimizer"].param_groups]
                load_states(work.state, [parts["optimizer"]], [])
                for group, rate in zip(parts["optimizer"].param_groups, rates, strict=True):
                    group["lr"] = group["initial_lr"] = rate

        given = {
            "learning_rate": work.lr,
            "lr_scheduler_type": "constant",
            "num_train_epochs": 1,
            "per_device_train_batch_size": work.options.batch,
            "seed": work.seed % 2**32,
            "report_to": [],
            "save_strategy": "no",
            "logging_strategy": "no",
            "disable_tqdm": True,
            "use_cpu": work.device.type == "cpu",
            "remove_unused_columns": False,
        }
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            args = transformers.TrainingArguments(folder, **{**given, **arguments})
            trainer = Trainer(model=model, args=args, callbacks=[Continue()])
            trainer.remove_callback(transformers.PrinterCallback)
            trainer.train()
            keep_states(work.state, [trainer.optimizer], [])

    return run


def fit(model: nn.Module, work: Work) -> None:
    fit_with()(model, work)
