"""The whole border between algorithms and machinery: what a policy may ask of its node.

A step is a frozen value. Awaiting it yields the step itself to whoever drives the coroutine and returns the
answer. The daemon's driver, the simulator and a test by hand are three such drivers.

Answers are partial, never exceptions: a peer that is gone is missing from the answer. Knows nothing of asyncio.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import coroutine
from typing import Any, Generic, Literal, TypeVar, cast

from pfl_node.model import Model
from pfl_node.types import Eval, Offer, Part, PeerId

A = TypeVar("A", covariant=True)


@dataclass(frozen=True, slots=True)
class Step(Generic[A]):
    """A question with an answer of type A."""

    def __await__(self) -> Generator[Step[Any], Any, A]:
        return cast(A, (yield self))


DIVERGED = "diverged"  # the event of a training that was thrown away

# Words of the journal that a policy's own events must not use.
RESERVED = frozenset(
    {"started", "round", "finished", "restarted", "crashed", "imported", "worked", "result", "failed"}
    | {"quarantined", "kept_out", "given_up"}
)

Flow = Coroutine[Step[Any], Any, None]  # what `main()` and `on_model()` are, seen by a driver


# -- time and peers ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sleep(Step[float]):
    """Wait, and learn what time it is: seconds on the node's clock, which only ever goes forward."""

    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Peers(Step[tuple[PeerId, ...]]):
    """The other nodes of this run that are believed alive, sorted by id. For a lockstep policy also those that did
    their last round and left: the graph of a round is then the same for the fast and the slow."""


# -- messages --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Send(Step[tuple[PeerId, ...]]):
    """Push a model; the answer names those who took it. With a round it goes to the receiver's Gather of that
    round, without one to its inbox (on_model or Receive)."""

    to: Sequence[PeerId]
    model: Model
    round: int | None = None
    tag: int = 0
    notes: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Gather(Step[tuple[Offer, ...]]):
    """What these peers sent for this round, in the order asked. Ends when all are there, or as many as the
    settings call enough, when those missing are known to be dead or in a later round, or when the deadline is
    over. It adapts to what each peer needs and is never longer than the patience (seconds; None:
    the node's own). `others` adds what else came for the round, from peers that were not waited for. A policy that
    is `late` gets what came too late for the rounds before, too, with the round it was for."""

    peers: Sequence[PeerId]
    round: int
    patience: float | None = None
    others: bool = False


@dataclass(frozen=True, slots=True)
class Receive(Step[tuple[Offer, ...]]):
    """The next n models of the inbox, fewer when the patience is over. For policies without on_model."""

    n: int = 1
    patience: float | None = None


@dataclass(frozen=True, slots=True)
class Fetch(Step[tuple[Offer, ...]]):
    """Pull the current model of these peers, or only its core or head, or their predictions: what they last told
    with Report or Publish. One that has not told yet is missing."""

    peers: Sequence[PeerId]
    part: Part = "model"


@dataclass(frozen=True, slots=True)
class Ask(Step[dict[PeerId, Eval]]):
    """These peers score my model on their own training data."""

    peers: Sequence[PeerId]
    model: Model


# -- learning --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Lesson(Step[A]):
    """Work for the learner."""

    @property
    def options(self) -> dict[str, Any]:
        """What the learner is told besides the models and the seed."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("model", "models")}


@dataclass(frozen=True, slots=True)
class Fresh(Step[Model]):
    """A newly initialised model, or its core or head. Equal seeds give equal models on one node, and on all
    nodes when the run starts from a common initialisation or `common` asks for it."""

    part: Part = "model"
    seed: int = 0
    common: bool = False


@dataclass(frozen=True, slots=True)
class Train(Lesson[Model]):
    """Train on my own data. None: as the run's settings say. `prox` pulls towards `anchor` (None: the start). A
    training that diverges is thrown away: the answer is the model as it was, and the journal says `diverged`."""

    model: Model
    only: Literal["core", "head"] | None = None
    epochs: float | None = None
    steps: int | None = None
    lr: float | None = None
    prox: float = 0.0
    anchor: Model | None = None


@dataclass(frozen=True, slots=True)
class Score(Lesson[tuple[Eval, ...]]):
    """Score models on my own data: all of it, or a random sample. `own_sample_each` draws a new sample for each
    model instead of one for all. Test data is for measuring only."""

    models: Sequence[Model]
    split: Literal["train", "val"] = "train"
    samples: int | None = None
    own_sample_each: bool = False

    def __post_init__(self) -> None:
        if self.split not in ("train", "val"):
            raise ValueError(f"a policy scores on train or val, not on {self.split!r}")


@dataclass(frozen=True, slots=True)
class Average(Step[Model]):
    """My model put together with others of its layout, by the rule of the run's `aggregate` settings: the mean,
    weighted if `weights` (one for each of the others) say so. `own` is the weight of mine; 0: it is only what the
    answer is when nothing else can be used. Models that are not finite are left out first. `claimed`: the weights
    are what peers say of themselves, and the settings bound how much of that is believed."""

    mine: Model
    others: Sequence[Model]
    weights: Sequence[float] | None = None
    own: float = 1.0
    claimed: bool = False

    @property
    def models(self) -> tuple[Model, ...]:
        return (self.mine, *self.others)


@dataclass(frozen=True, slots=True)
class Predict(Lesson[Model]):
    """What my model says about the task's auxiliary samples, as a value of the part "predictions" (see
    `predictions.py`), which is sent, gathered and fetched like a model. `novelty` (epochs of an autoencoder that
    learns my data; 0: none) adds how strange each sample is to me, `counts` how many I have of each class."""

    model: Model
    novelty: int = 0
    counts: bool = False


@dataclass(frozen=True, slots=True)
class Distill(Lesson[Model]):
    """Train a model to say what a teacher says about the auxiliary samples. `held`, a share of them, is not
    trained on and decides which epoch's model is the answer (0: the last one's)."""

    model: Model
    teacher: Model  # predictions
    loss: Literal["mse", "ce", "kl"] = "mse"
    temperature: float = 1.0  # of kl
    epochs: int = 30
    lr: float = 1e-3
    batch: int = 50
    held: float = 0.2


# -- telling ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Record(Step[None]):
    """Write an event into the node's journal."""

    event: str
    data: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.event in RESERVED:
            raise ValueError(f"{self.event!r} is a word of the node's own journal; name the event otherwise")


@dataclass(frozen=True, slots=True)
class Publish(Step[None]):
    """From now on this is what a peer gets that Fetches: of a model all of it, its core or its head; or the
    predictions. A Report does it too."""

    model: Model
    round: int
    tag: int = 0
    notes: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.model.layout.part in ("core", "head"):
            raise ValueError(f"a {self.model.layout.part} alone cannot be published: publish the model it is of")


@dataclass(frozen=True, slots=True)
class Report(Step[None]):
    """A round is done and this is my personal model now: it is served to those who Fetch, with the tag and the
    notes, evaluated when that is due, and kept in the checkpoint."""

    round: int
    model: Model
    data: Mapping[str, Any] = field(default_factory=dict)
    tag: int = 0
    notes: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Linger(Step[bool]):
    """My rounds are done: stay for the others, who may Fetch and Ask, until theirs are done too or none of them
    has got on for as long as the settings say (True), or so many seconds are over (False; None: no such limit)."""

    seconds: float | None = None


def diverged(round: int) -> Record:
    """What a driver writes down when a training ended with numbers that are not finite."""
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
    """Run a coroutine inside another one. Every step passes through `each`: the outer driver receives what `each`
    yields, and the inner coroutine receives what `each` returns."""
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
