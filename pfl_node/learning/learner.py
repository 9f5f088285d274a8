"""One node's data and how to learn from it: fresh models, training, scores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pfl_node import predictions
from pfl_node.errors import ConfigError, LayoutMismatch, TaskError
from pfl_node.learning import layout as layouts
from pfl_node.learning.autoencoder import Novelty
from pfl_node.learning.auxiliary import Auxiliary, class_counts
from pfl_node.learning.columns import with_inputs_of
from pfl_node.learning.data import close, complete, to_device
from pfl_node.learning.devices import memory_errors, own_stream, pick, stream_for
from pfl_node.learning.distill import Recipe, distill
from pfl_node.learning.dp_sgd import ALONE, check_buffers, private_training
from pfl_node.learning.eval_batch import batch_for
from pfl_node.learning.eval_cache import Measured
from pfl_node.learning.fit_check import probe
from pfl_node.learning.fitting import Fitting, Training, check_loop
from pfl_node.learning.gradients import ahead_of, gradient
from pfl_node.learning.networks import networks_of
from pfl_node.learning.penalties import Penalties
from pfl_node.learning.precision import autocast
from pfl_node.learning.samples import Samples, Tree
from pfl_node.learning.scoring import Figures, draw_samples, each, mean_loss, measure
from pfl_node.learning.seeding import generator, seed_layers
from pfl_node.learning.task import Task
from pfl_node.learning.task_metrics import metrics_of
from pfl_node.learning.torch_optim import checked
from pfl_node.learning.train_options import levels_of, number_of_batches, resolve
from pfl_node.learning.training_loop import Between, nothing
from pfl_node.learning.workspace import Only, Workspace, in_float32
from pfl_node.model import Layout, LocalState, Model, StateCell, Vector
from pfl_node.protocol.privacy.dp_account import DpAccount
from pfl_node.protocol.privacy.pair_noise import PairSeeds
from pfl_node.seeds import seed_from
from pfl_node.settings import DataSettings, TrainSettings
from pfl_node.settings.sections import PrivacySettings
from pfl_node.types import Eval, Part, Split

NOT_PRIVATE = (
    "privacy.dp does not protect what this policy sends besides its model: for feded set policy.weights = w0"
)
EVAL_BATCH = 512
EVAL_BATCH_IMAGES = 64  # on a CPU, so that a batch fits the cache: 256 took 1.6 times as long


class Learner:
    """Synchronous, and on a CPU deterministic: the same seed gives the same bytes. Any thread may use it, one at a
    time; `between` may use it recursively."""

    layout: Layout
    samples: int  # number of training samples
    cluster: int | None
    stateful: bool  # whether nodes keep a LocalState
    source: Callable[[], Learner] | None = None  # calls the task again

    def __init__(
        self,
        task: Task,
        settings: TrainSettings,
        device: str = "auto",
        privacy: PrivacySettings | None = None,
        account: DpAccount | None = None,
        student: str | None = None,
        rounds: int | None = None,  # rounds of the run, for schedules
        *,
        data: DataSettings | None = None,
        eval_batch: int | None = None,
    ) -> None:
        self._device = pick(device)
        self._stream = stream_for(self._device)
        self.account = account or DpAccount()  # cost of privacy.dp
        self._levels = levels_of(task, settings)
        self._rounds = rounds
        options = checked(resolve(self._levels, rounds=rounds), privacy)
        self._precision = options.precision
        task = complete(task, seed=0, settings=data)
        self._name, self._given_loss, self.cluster = task.name, task.loss, task.cluster
        self._networks = networks_of(task, student, self._device)
        self._pool = self._networks.main.pool
        self.stateful = options.keep or task.fit is not None or self._networks.private_size > 0
        module = self._pool.module
        check_loop(task, module, privacy, student)
        self._private = private_training(task, module, privacy, self.account)
        images = any(isinstance(m, nn.Conv2d) for m in module.modules())
        task = with_inputs_of(module, task)
        self._splits = to_device(task, self._device, data or DataSettings(), images=images)
        self.layout, self.private_layout = self._pool.layout, self._networks.main.placement.private
        self.samples = self._splits["train"].n
        self._penalties = Penalties(task)
        self._fitting = Fitting(task, self._splits["train"], self._loss, self._private)
        with self._pool.borrow() as space:
            private = self._networks.main.first_private
            space.load(Model(self.layout, layouts.pack(module, self.layout)), private)
            self._classes = self._probe(task, space)
            largest = EVAL_BATCH_IMAGES if images and self._device.type == "cpu" else EVAL_BATCH
            self._eval_batch = eval_batch or batch_for(space.module, self._splits["train"], largest)
            self._metrics = metrics_of(task, space.module, self._splits["val"], self._device)
        self.headline = self._metrics.headline
        self._has_auxiliary = task.auxiliary is not None
        self._beside = self._with_auxiliary(task, images)

    def _probe(self, task: Task, space: Workspace) -> int | None:
        space.prepare(None)  # the parameters require a gradient
        space.module.eval()
        uses: dict[str, bool] = {"own_loss": task.loss is not None, "trains": task.fit is None}
        return probe(task.name, space.module, self._loss, self._splits, **uses)

    def size(self, split: Split, samples: int | None) -> int:
        """The number of samples that a score of `samples` samples uses; None: all of the split."""
        n = self._splits[split].n
        return n if samples is None else min(samples, n)

    def batches(self, epochs: float | None = None, steps: int | None = None) -> int:
        """The number of batches of a Train with these options."""
        options = resolve(({"epochs": epochs, "steps": steps}, *self._levels), rounds=self._rounds)
        return number_of_batches(self.samples, options)

    def fresh(self, seed: int, part: Part = "model", *, local: bool = False) -> Model:
        """A newly initialised model or part; `local`: of the task's own network, not of the student's."""
        model = (self._networks.own if local else self._networks.main).fresh(seed).of(part)
        return model if part == "model" else Model(model.layout, model.vector.copy())

    def start(self, seed: int) -> LocalState:
        """The initial local state of a node."""
        return self._networks.start(seed)

    def train(
        self,
        model: Model,
        *,
        seed: int,
        only: Only = None,
        epochs: float | None = None,
        steps: int | None = None,
        lr: float | None = None,
        prox: float = 0.0,
        anchor: Model | None = None,
        correction: Model | None = None,
        penalty: str | None = None,
        anchors: Mapping[str, Model] | None = None,
        knobs: Mapping[str, float] | None = None,
        plain: bool = False,
        slot: int = 0,
        past: Model | None = None,
        lookahead: float = 0.0,
        round: int = 0,
        partners: tuple[PairSeeds, int] = ALONE,
        state: StateCell | None = None,
        between: Between | None = None,
    ) -> Model:
        """Train on my data. `prox` is the weight of a proximal term towards `anchor` (None: the initial model).
        `correction` is added to every gradient. `penalty`, with `anchors` and `knobs`, names a term of the loss.
        `plain`, `slot`: as in the step Train. With `past`, training starts `lookahead` times the distance to it
        beyond the model. `round` sets the learning rate of a schedule. The result may not be finite. `between` is
        called after every batch."""
        self._check_objective(model, (anchor, correction, *(anchors or {}).values()), penalty)
        options = resolve(({"epochs": epochs, "steps": steps, "lr": lr}, *self._levels), prox, self._rounds)
        if self._private and not self._private.may(options, self.samples):
            return model
        given: dict[str, Any] = {"only": only, "seed": seed, "anchor": anchor or model, "round": round}
        given |= {"partners": partners, "correction": correction, "state": state, "between": between or nothing}
        with (
            memory_errors(self._device),
            own_stream(self._stream),
            self._networks.loaded(ahead_of(model, past, lookahead, only), state) as space,
            self._penalties.term(penalty, anchors, knobs, space, self._networks, state) as term,
        ):
            self._fitting.run(space, Training(options=options, plain=plain, slot=slot, **given, penalty=term))
            vector, private = space.export(), space.export_private()
        self._check_buffers(model, vector, private, state)
        return self._networks.result(model, vector, private, state, only)

    def _check_objective(self, model: Model, others: Iterable[Model | None], penalty: str | None) -> None:
        for other in others:
            self._networks.check_alike(model, other)
        if self._private and penalty:
            raise ConfigError(f"privacy.dp cannot protect the penalty {penalty!r}: leave out one of them")

    def gradient(
        self,
        model: Model,
        *,
        seed: int,
        batch: int = 0,
        samples: int | None = None,
        state: StateCell | None = None,
        between: Between | None = None,
    ) -> Model:
        """The gradient of the loss on the samples that `seed` and the number `batch` choose, in training mode; it
        may not be finite. `samples`: None: one batch."""
        if self._private:
            raise ConfigError("privacy.dp adds no noise to the gradients that this policy asks for: leave out one")
        options, chosen = resolve(self._levels, rounds=self._rounds), seed_from(seed, batch)
        with memory_errors(self._device), own_stream(self._stream), self._networks.loaded(model, state) as space:
            vector = gradient(
                space, self._splits["train"], self._loss, options, samples, chosen, between or nothing
            )
        return Model(model.layout, vector)

    def score(
        self,
        models: Sequence[Model],
        *,
        split: Split = "train",
        samples: int | None = None,
        own_sample_each: bool = False,
        seed: int = 0,
        state: StateCell | None = None,
        between: Between | None = None,
    ) -> tuple[Eval, ...]:
        """Loss and accuracy on all samples of a split, or on a random sample that is the same for all models.

        With `own_sample_each` every model gets its own sample; if that would be all the data, it is drawn with
        replacement, so that equal models get different scores. The accuracy is NaN if labels are not classes.
        Predictions are scored with the labels of the auxiliary samples; NaN if there are none.
        """
        if models and models[0].layout == self.predictions:
            return tuple(self._needed()[0].score(predictions.outputs(said)) for said in models)
        data, chance, results = self._splits[split], generator(seed), []
        draw = draw_samples(data.n, samples, own_sample_each, chance)
        network = self._networks.of(models[0]) if models else self._networks.main
        private = self._networks.private_of(network, state)
        with network.pool.borrow() as space:
            for n, model in enumerate(models):
                if n and own_sample_each:
                    draw = draw_samples(data.n, samples, own_sample_each, chance)
                results.append(self._measure(space, model, private, data, draw, between or nothing).figures)
        return tuple(results)

    def each(
        self, model: Model, split: Split = "train", *, state: StateCell | None = None
    ) -> tuple[Figures, Figures]:
        """Loss and accuracy (NaN if labels are not classes) of every sample."""
        with self._networks.loaded(model, state) as space, autocast(self._precision, self._device):
            return each(space.module, self._splits[split], self._given_loss, batch=self._eval_batch)

    def confusion(
        self, model: Model, split: Split = "test", *, state: StateCell | None = None
    ) -> list[list[int]] | None:
        """Samples by true class (rows) and predicted class (columns); None: labels are not classes."""
        data, classes = self._splits[split], self._classes
        if classes is None:
            return None
        network = self._networks.of(model)
        with network.pool.borrow() as space:
            private = self._networks.private_of(network, state)
            found = self._measure(space, model, private, data, None, nothing).classes
        if found is None or found[0].is_floating_point() or found[0].ndim != 1:
            return None
        y, said = found
        pairs = (y * classes + said)[y >= 0]
        return torch.bincount(pairs, minlength=classes * classes).view(classes, classes).tolist()

    @property
    def predictions(self) -> Layout | None:
        """The layout of `predict`; None: there are no auxiliary samples, or the outputs are not class scores."""
        return self._beside and self._beside[0].layout

    def predict(
        self,
        model: Model,
        *,
        seed: int,
        novelty: int = 0,
        counts: bool = False,
        state: StateCell | None = None,
        between: Between | None = None,
    ) -> Model:
        """Class probabilities for the auxiliary samples. `novelty` (epochs of the autoencoder) adds the novelty of
        each sample, `counts` my samples per class."""
        if self._private and (novelty or counts):
            raise ConfigError(NOT_PRIVATE)
        (about, strange), between = self._needed(), between or nothing
        with self._networks.loaded(model, state) as space:
            seed_layers(seed, self._device)
            outputs = about.outputs(space.module, between)
        errors = strange.errors(novelty, between).numpy() if novelty else None
        mine = class_counts(self._splits["train"], about.classes, self._eval_batch).numpy() if counts else None
        return predictions.pack(about.layout, outputs.numpy(), errors, mine)

    def distill(
        self,
        model: Model,
        *,
        seed: int,
        teacher: Model,
        state: StateCell | None = None,
        between: Between | None = None,
        **recipe: Any,
    ) -> Model:
        """Train the model with Adam to reproduce the teacher's predictions for the auxiliary samples, as `Recipe`
        describes. The result may not be finite."""
        about, _ = self._needed()
        if teacher.layout != about.layout:
            raise LayoutMismatch(f"{teacher!r} does not hold predictions for my auxiliary samples")
        target = torch.tensor(predictions.outputs(teacher), device=self._device)
        with self._networks.loaded(model, state) as space:
            vector, private = distill(space, about, target, Recipe(**recipe), seed, between or nothing)
        return self._networks.result(model, vector, private, state)

    def tensors(self, model: Model, state: LocalState | None = None) -> dict[str, layouts.Array]:
        """Named arrays in the shapes and types of the module, for a file; with a state also the private ones."""
        network = self._networks.main
        private = None if state is None else self._networks.private_of(network, StateCell(state))
        return network.tensors(model, private)

    def reload(self, between: Between | None = None) -> dict[str, int]:  # noqa: ARG002
        """Call the task again and use its data from now on; returns the samples by split. An error changes
        nothing."""
        if self.source is None:
            raise TaskError(f"task {self._name} cannot be called again: it was given as an object")
        fresh = self.source()
        same = fresh.layout == self.layout and fresh._networks.private_digest == self._networks.private_digest
        if not same or fresh.predictions != self.predictions:
            raise TaskError(f"task {self._name} returned another model or auxiliary samples: restart the node")
        self.close()  # ends the workers that read the old data
        vars(self).update(vars(fresh))  # the new data, and everything that is derived from it
        return {str(split): self._splits[split].n for split in self._splits}

    def module(self) -> nn.Module:
        """A new module of the network whose models this learner trains, to be filled, in main memory."""
        main = self._networks.main
        return in_float32(main.build(0), main.placement, torch.device("cpu"))

    def from_tensors(self, tensors: Mapping[str, layouts.Array], part: Part = "model") -> Model:
        """Ignores private tensors."""
        private = {entry.name for entry in self._networks.main.placement.private.entries}
        return layouts.repack({n: t for n, t in tensors.items() if n not in private}, self.layout.of(part))

    def close(self) -> None:
        """End the processes that read data. The learner stays usable."""
        close(self._splits.values())

    def _check_buffers(self, model: Model, vector: Vector, private: Vector, state: StateCell | None) -> None:
        """With privacy.dp, only parameters may change, even among the private tensors: later gradients depend on
        them."""
        if self._private is None:
            return
        network = self._networks.of(model)
        check_buffers(self._name, model, vector)
        if (before := self._networks.private_of(network, state)) is not None:
            check_buffers(self._name, Model(network.placement.private, before), private)

    def _measure(
        self,
        space: Workspace,
        model: Model,
        private: Vector | None,
        data: Samples,
        draw: Tensor | None,
        between: Between,
    ) -> Measured:
        """Nodes of a process share test data, so equal models are evaluated once."""
        network, shared = self._networks.of(model), draw is None and data is self._splits["test"]
        memory, what = network.pool.memory, self._metrics if self._metrics.names else self._given_loss
        key = memory.key(model, network.for_outputs(private), data, what) if shared else None
        if key is not None and (known := memory.get(key)) is not None:
            return known
        space.load(model, private)
        found = self._evaluate(space.module, data, draw, between)
        if key is not None:
            memory.put(key, found, data, what)
        return found

    def _evaluate(self, module: nn.Module, data: Samples, draw: Tensor | None, between: Between) -> Measured:
        batch, classes = self._eval_batch, self._classes is not None
        run = self._metrics.begin(self._device) if self._metrics.collects else None
        options: dict[str, Any] = {"batch": batch, "classes": classes, "between": between}
        with autocast(self._precision, self._device):
            found = measure(module, data, draw, self._given_loss, collect=run.add if run else None, **options)
        return found._replace(figures=self._metrics.complete(found.figures, run))

    def _loss(self, output: Tree, y: Tree) -> Tensor:
        return mean_loss(self._given_loss, output, y, by_sample=self._private is not None)

    def _with_auxiliary(self, task: Task, images: bool) -> tuple[Auxiliary, Novelty] | None:
        if task.auxiliary is None or self._classes is None:
            return None
        kind: dict[str, Any] = {"images": images, "batch": self._eval_batch, "labels": task.auxiliary_labels}
        about = Auxiliary(task.auxiliary, self._classes, self._device, **kind)
        batch = next((level["batch"] for level in self._levels[:2] if "batch" in level), None)
        return about, Novelty(task.name, self._splits["train"], about, task.autoencoder, batch)

    def _needed(self) -> tuple[Auxiliary, Novelty]:
        if self._beside is not None:
            return self._beside
        if self._has_auxiliary:
            raise TaskError(f"task {self._name}: the policy needs class scores, which the model does not output")
        raise TaskError(
            f"task {self._name}: the policy needs auxiliary samples, which the task lacks: return `auxiliary`, "
            "inputs that are the same at every place (digits: --set task.auxiliary=0.5)"
        )
