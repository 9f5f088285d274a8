"""The interface between algorithms and the node: the requests a policy may make.

A step is a frozen value. Awaiting it yields the step to the driver of the coroutine and returns the driver's
answer. Drivers are the node, real or simulated, and the tests.

Answers are partial rather than exceptional: a peer that is gone is missing from the answer. Does not import
asyncio.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from numbers import Integral
from types import coroutine
from typing import Any, Generic, Literal, TypeVar, cast

from pfl_node.model import Model, PartialModel
from pfl_node.types import MAX_VECTOR_NAME, MAX_VECTORS, Eval, Offer, Part, PeerId

A = TypeVar("A", covariant=True)


@dataclass(frozen=True, slots=True)
class Step(Generic[A]):
    """A request with an answer of type A."""

    def __await__(self) -> Generator[Step[Any], Any, A]:
        return cast(A, (yield self))


DIVERGED = "diverged"  # the event of a training whose result was discarded
OUT_OF_MEMORY = "out_of_memory"  # the event of a training that did not fit into the device's memory

# Event names of the journal that policies must not use.
RESERVED = frozenset(
    {"started", "round", "finished", "restarted", "crashed", "imported", "worked", "result", "failed"}
    | {"quarantined", "kept_out", "given_up"}
)

Flow = Coroutine[Step[Any], Any, None]  # `main()` and `on_model()` as a driver sees them


@dataclass(frozen=True, slots=True)
class Sleep(Step[float]):
    """Wait; the answer is the time in seconds on the node's monotonic clock."""

    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Peers(Step[tuple[PeerId, ...]]):
    """The other nodes of this run that are believed alive, sorted by id. For a lockstep policy also those that
    finished their last round and left, so that fast and slow nodes compute the same graph."""


@dataclass(frozen=True, slots=True)
class Send(Step[tuple[PeerId, ...]]):
    """Push a model; the answer lists the peers that accepted it. With a round, it goes to the receivers' Gather of
    that round; without one, to their inbox (on_model or Receive). `vectors` are those that the policy declares,
    each with the layout of the whole model, its core or its head. `base`: a model that the receivers have too:
    `wire.compress` omits what differs little from it; None: what has changed little since I last sent it. `whole`:
    omit nothing."""

    to: Sequence[PeerId]
    model: Model
    round: int | None = None
    tag: int = 0
    notes: Mapping[str, float] = field(default_factory=dict)
    vectors: Mapping[str, Model] = field(default_factory=dict)
    base: Model | None = None
    whole: bool = False

    def __post_init__(self) -> None:
        _check_vectors(self.model, self.vectors)
        base = self.base
        if base is not None and (isinstance(base, PartialModel) or base.layout != self.model.layout):
            raise ValueError(f"the base of a Send is a complete model with the layout of what is sent: {base!r}")


@dataclass(frozen=True, slots=True)
class Gather(Step[tuple[Offer, ...]]):
    """The models that these peers sent for this round, in the order of `peers`. Ends when all, or a quorum, have
    arrived, when the missing peers are dead or in a later round, or at the deadline. The deadline adapts to each
    peer (`protocol/deadlines.py`) and is at most `patience` seconds (None: the node's setting). `others` adds
    models for the round from peers that are not in `peers`. A policy that is `late` also gets models that arrived
    too late for earlier rounds, with their round."""

    peers: Sequence[PeerId]
    round: int
    patience: float | None = None
    others: bool = False


@dataclass(frozen=True, slots=True)
class Receive(Step[tuple[Offer, ...]]):
    """The next n models of the inbox; fewer after `patience` seconds. For policies without on_model."""

    n: int = 1
    patience: float | None = None


@dataclass(frozen=True, slots=True)
class Fetch(Step[tuple[Offer, ...]]):
    """Pull the current model of these peers, or only its core or head, or their predictions: what they last
    published with Report or Publish. Peers that have published nothing are missing. `whole`: complete, although
    the run's `wire.compress` sends partial models."""

    peers: Sequence[PeerId]
    part: Part = "model"
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Ask(Step[dict[PeerId, Eval]]):
    """Have these peers score my model on their training data."""

    peers: Sequence[PeerId]
    model: Model


@dataclass(frozen=True, slots=True)
class Lesson(Step[A]):
    """A request to the learner."""

    @property
    def options(self) -> dict[str, Any]:
        """The learner's arguments besides the models and the seed."""
        left_out = ("model", "models", "partners")
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in left_out}


@dataclass(frozen=True, slots=True)
class Fresh(Step[Model]):
    """A newly initialised model, or its core or head. Equal seeds give equal models on one node, and on all nodes
    if the run starts from a common initialisation or `common` is set. `local`: of the task's own network, if
    `policy.student_model` names another one."""

    part: Part = "model"
    seed: int = 0
    common: bool = False
    local: bool = False


@dataclass(frozen=True, slots=True)
class Train(Lesson[Model]):
    """Train on my own data. None: as the run's settings say. `prox` is the weight of a proximal term towards
    `anchor` (None: the initial model). `correction` is added to the gradient of every step. `penalty` names a
    function of the task, of `learning/penalties.py` or of a file ("mine.py:function") that returns a term of the
    loss; it gets the `anchors` as modules and the `knobs` as arguments. `plain`: every batch is one step of plain
    SGD, whatever the run's optimizer. `slot`: the number of the state that continues from round to round (an
    optimizer's with `train.keep_optimizer`, that of a task's own loop), for a policy with several models. If the
    training diverges, the answer is the initial model, and the journal records `diverged`. `partners`: if the
    policy is `correlated`, the neighbours that get the result and send theirs in this round; their noise and mine
    cancel."""

    model: Model
    only: Literal["core", "head"] | None = None
    epochs: float | None = None
    steps: int | None = None
    lr: float | None = None
    prox: float = 0.0
    anchor: Model | None = None
    correction: Model | None = None
    penalty: str | None = None
    anchors: Mapping[str, Model] = field(default_factory=dict)
    knobs: Mapping[str, float] = field(default_factory=dict)
    plain: bool = False
    slot: int = 0
    partners: Sequence[PeerId] = ()

    def __post_init__(self) -> None:
        given = {"the anchor": self.anchor, "the correction": self.correction}
        given |= {f"the anchor {name!r}": anchor for name, anchor in self.anchors.items()}
        for what, model in given.items():
            if model is not None:
                _check_model(what, model)
        if callable(self.penalty):
            raise TypeError(f'a penalty is given by its name: penalty=f"{{__file__}}:{self.penalty.__name__}"')


@dataclass(frozen=True, slots=True)
class Gradient(Lesson[Model]):
    """The gradient of the loss on a batch of my own data, in the layout of the model; zero for buffers. The same
    number in the same round is the same batch. `samples` is its size (None: as the run's settings say; at most
    all). A gradient that is not finite is answered with zeros, and the journal records `diverged`."""

    model: Model
    batch: int = 0
    samples: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.batch, Integral):
            raise TypeError(f"a batch has a whole number, not {self.batch!r}")
        if self.samples is not None and self.samples < 1:
            raise ValueError(f"a gradient needs at least one sample, not {self.samples}")


@dataclass(frozen=True, slots=True)
class Score(Lesson[tuple[Eval, ...]]):
    """Score models on all of my own data or a random sample. `own_sample_each` draws a new sample for each model.
    Test data is for measuring only."""

    models: Sequence[Model]
    split: Literal["train", "val"] = "train"
    samples: int | None = None
    own_sample_each: bool = False

    def __post_init__(self) -> None:
        if self.split not in ("train", "val"):
            raise ValueError(f"a policy scores on train or val, not on {self.split!r}")


@dataclass(frozen=True, slots=True)
class Average(Step[Model]):
    """Aggregate my model with others of its layout by the rule of the run's `aggregate` settings: by default the
    mean, weighted by `weights` (one for each of the others). `own` is the weight of my model; 0: it is only the
    answer if no other model is usable. Models that are not finite are excluded. `claimed`: the weights come from
    the peers themselves, and the settings bound them. `gated` is False for vectors that are no models: the guard
    does not score them."""

    mine: Model
    others: Sequence[Model]
    weights: Sequence[float] | None = None
    own: float = 1.0
    claimed: bool = False
    gated: bool = True

    @property
    def models(self) -> tuple[Model, ...]:
        return (self.mine, *self.others)


@dataclass(frozen=True, slots=True)
class Predict(Lesson[Model]):
    """My model's predictions for the task's auxiliary samples, as a value of the part "predictions" (see
    `predictions.py`), which is sent, gathered and fetched like a model. `novelty` (epochs of an autoencoder
    trained on my data; 0: none) adds the novelty of each sample to me, `counts` my number of samples per class."""

    model: Model
    novelty: int = 0
    counts: bool = False


@dataclass(frozen=True, slots=True)
class Distill(Lesson[Model]):
    """Train a model to reproduce a teacher's predictions for the auxiliary samples. The share `held` of them is
    not trained on; with `best` it decides which epoch's model is the answer, otherwise the last epoch's is."""

    model: Model
    teacher: Model  # predictions
    loss: Literal["mse", "mse_softmax", "ce", "kl"] = "mse"
    temperature: float = 1.0  # of kl
    epochs: int = 30
    lr: float = 1e-3
    batch: int = 50
    held: float = 0.2
    best: bool = False


@dataclass(frozen=True, slots=True)
class Record(Step[None]):
    """Write an event into the node's journal."""

    event: str
    data: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.event in RESERVED:
            raise ValueError(f"{self.event!r} is an event of the node itself; choose another name")


@dataclass(frozen=True, slots=True)
class Publish(Step[None]):
    """From now on, peers that Fetch get this model (whole, its core or its head) or these predictions. A Report
    does this too."""

    model: Model
    round: int
    tag: int = 0
    notes: Mapping[str, float] = field(default_factory=dict)
    vectors: Mapping[str, Model] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_vectors(self.model, self.vectors)
        if self.model.layout.part in ("core", "head"):
            raise ValueError(f"a {self.model.layout.part} alone cannot be published: publish the whole model")


@dataclass(frozen=True, slots=True)
class Report(Step[None]):
    """A round is done, and this is my personal model: peers can fetch it with the tag and the notes, and the node
    evaluates it when due and writes it to the checkpoint."""

    round: int
    model: Model
    data: Mapping[str, Any] = field(default_factory=dict)
    tag: int = 0
    notes: Mapping[str, float] = field(default_factory=dict)
    vectors: Mapping[str, Model] = field(default_factory=dict)
    publish: bool = True  # False: peers keep fetching what was published last

    def __post_init__(self) -> None:
        _check_vectors(self.model, self.vectors)


@dataclass(frozen=True, slots=True)
class Linger(Step[bool]):
    """My rounds are done: keep serving Fetch and Ask until the other nodes are done or make no progress for as
    long as the settings allow (True), or until `seconds` have passed (False; None: no limit)."""

    seconds: float | None = None


def _check_vectors(model: Model, vectors: Mapping[str, Model]) -> None:
    if len(vectors) > MAX_VECTORS:
        raise ValueError(f"{len(vectors)} vectors beside the model; at most {MAX_VECTORS} can be sent")
    for name, vector in vectors.items():
        _check_model(f"the vector {name!r}", vector)
        if not name.isidentifier() or not name.isascii() or len(name) > MAX_VECTOR_NAME:
            raise ValueError(
                f"a vector cannot be called {name!r}: use an identifier of up to {MAX_VECTOR_NAME} letters"
            )
        if (vector.layout.whole or vector.layout) != (model.layout.whole or model.layout):
            raise ValueError(f"the vector {name!r} has neither the model's layout nor that of a part: {vector!r}")


def _check_model(what: str, given: object) -> None:
    if not isinstance(given, Model):
        raise TypeError(f"{what} is a {type(given).__name__}: give Model(self.model.layout, numbers)")


def diverged(round: int) -> Record:
    """The event that a driver records when a training yields values that are not finite."""
    return Record(DIVERGED, {"round": round, "hint": "lower train.lr"})


def advance(flow: Flow, answer: Any = None, failure: Exception | None = None) -> Step[Any] | None:
    """Resume a policy's coroutine with the answer to its last step, or raise the failure there. Returns the next
    step; None: the coroutine has ended."""
    try:
        step: Any = flow.throw(failure) if failure else flow.send(answer)
        if isinstance(step, Step):
            return step
        return flow.throw(TypeError(f"a policy awaits steps only, not {step!r}"))
    except StopIteration:
        return None


@coroutine
def relay(
    flow: Flow, each: Callable[[Step[Any]], Generator[Step[Any], Any, Any]]
) -> Generator[Step[Any], Any, None]:
    """Drive a coroutine from within another one. Every step goes through `each`: what it yields goes to the outer
    driver, what it returns is the answer."""
    answer: Any = None
    failure: Exception | None = None
    while (step := advance(flow, answer, failure)) is not None:
        failure = None
        try:
            answer = yield from each(step)
        except Exception as error:
            failure = error
        except GeneratorExit:
            flow.close()
            raise
