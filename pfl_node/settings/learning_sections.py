"""The settings of learning: the task, training and evaluation."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    WithJsonSchema,
)

from pfl_node.settings.section import Section

OPTIMIZERS = "sgd, adam, or the name of any optimizer of torch.optim, such as AdamW"
Optimizer = Annotated[str, Field(pattern=r"^[A-Za-z]\w*$"), WithJsonSchema({"words": OPTIMIZERS})]


class TaskSettings(BaseModel):
    """What to learn; every other key of the section is an argument of the task's function."""

    model_config = ConfigDict(frozen=True, extra="allow")

    name: str = "digits"
    """A name of `pfl-node tasks`, `file.py:function` or `package.module:function`."""
    index: NonNegativeInt | Literal["slot"] | None = None
    """The node's place among `nodes`; slot: N-1 if the data directory's name ends in -N; None: the task decides by
    the node's id."""
    nodes: PositiveInt | None = None
    """The number of places; None: unknown."""
    refresh: PositiveFloat | None = None
    """Seconds after which the task is called again for new data; None: only on request."""

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class TrainSettings(Section):
    """How a node trains. None: as the task says, else 1 epoch of SGD with learning rate 0.05 and batch size 8."""

    optimizer: Optimizer | None = None
    """sgd, adam, or the name of any optimizer of torch.optim, such as AdamW."""
    optimizer_options: dict[str, Any] | None = None
    """Further arguments of the optimizer, such as `{betas = [0.9, 0.98]}`; torch's defaults apply otherwise."""
    lr: PositiveFloat | None = None
    """Learning rate; None: 0.05 for sgd and adam, torch's default for other optimizers."""
    momentum: NonNegativeFloat | None = None
    """Momentum of SGD."""
    weight_decay: NonNegativeFloat | None = None
    """L2 penalty; AdamW: decoupled weight decay."""
    keep_optimizer: bool | None = None
    """Keep the optimizer's state (momentum, moments) from round to round and in checkpoints; None: a new optimizer
    in every round."""
    schedule: Literal["constant", "cosine", "step"] | None = None
    """The learning rate over the rounds of the run: cosine falls to `schedule_factor` at the end of the run, step
    multiplies by `schedule_factor` every `schedule_every` rounds."""
    schedule_rounds: PositiveInt | None = None
    """cosine: its length in rounds; None: `rounds`."""
    schedule_every: PositiveInt | None = None
    """step: rounds between two reductions; None: 10."""
    schedule_factor: Annotated[float, Field(ge=0, le=1)] | None = None
    """None: 0 for cosine, 0.1 for step."""
    warmup: NonNegativeFloat | None = None
    """Rounds in which the learning rate rises linearly from 0; may be a fraction."""
    clip: PositiveFloat | None = None
    """Largest L2 norm of a gradient; a longer one is scaled down. None: no limit."""
    accumulate: PositiveInt | None = None
    """Batches whose gradients are averaged for one step of the optimizer."""
    precision: Literal["fp32", "bf16", "fp16"] | None = None
    """bf16, fp16: mixed precision (torch.autocast) for training and evaluation, with loss scaling for fp16. The
    weights stay float32."""
    compile: bool | None = None
    """Compile the model for training with torch.compile, which needs a C++ compiler on a CPU."""
    batch: PositiveInt | None = None
    """Samples per batch."""
    epochs: PositiveFloat | None = None
    """Passes over the data per round; may be a fraction."""
    steps: PositiveInt | None = None
    """Batches per round; overrides epochs."""
    patience: PositiveInt | None = None
    """Early stopping: a node stops after this many rounds without a better result on its validation data, and its
    final model is the best one; None: never."""
    lookahead: NonNegativeFloat = 0.0
    """Opposite lookahead (OledFL): the training of an average starts beyond it, by this multiple of its distance
    to the node's own last model; 0: at the average."""
    init: Literal["common", "independent"] = "independent"
    """Whether all nodes of a run start from the same random model."""


class DataSettings(Section):
    """How the samples of Datasets are read. Arrays and tensors are in memory anyway."""

    memory: Literal["auto", "always", "never"] = "auto"
    """auto: keep a split in memory if it is small and reading a sample draws no random numbers; always: read it
    once, so that random transforms are drawn once; never: read each sample when it is needed."""
    workers: NonNegativeInt = 0
    """Processes that read samples that are not in memory; 0: the training thread reads them. Results do not depend
    on it."""
    prefetch: PositiveInt = 2
    """Batches that each worker reads in advance."""
    pin: bool = True
    """On a GPU: workers' batches are copied from pinned memory."""


class EvalSettings(Section):
    """How often the personal model is evaluated on the validation and test data."""

    every: PositiveInt = 1
    """Rounds."""
    on: tuple[Literal["val", "test"], ...] = ("val", "test")
    """Which data; leave out data that is not needed, because evaluation takes time."""
    batch: PositiveInt | None = None
    """Samples per evaluation step; None: 512, for images on a CPU 64, and fewer if a step would need more than
    256 MB or an eighth of the available memory."""
