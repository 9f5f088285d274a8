"""The ports of a node. The daemon implements them with gRPC, SWIM, a thread and the disk; the simulator implements
them in memory and in virtual time. The clock is the running event loop's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from pfl_node.learning.build import Poison
from pfl_node.model import Layout, LocalState, Model, StateCell
from pfl_node.policies.base import Policy, PolicyConfig
from pfl_node.settings.sections import GuardSettings
from pfl_node.steps import Average
from pfl_node.types import Eval, Headline, Offer, Part, PeerId

if TYPE_CHECKING:
    from pfl_node.protocol.privacy.controls import PrivacyControls
    from pfl_node.protocol.privacy.dp_account import DpAccount
    from pfl_node.settings import AggregateSettings, Settings

Tell = Callable[[str, Mapping[str, Any]], None]
Kind = Literal["fresh", "start", "train", "gradient", "distill", "predict", "score", "each", "confusion", "reload"]
TRAINING = ("train", "distill")  # jobs that replace the local state


def discard_event(kind: str, data: Mapping[str, Any]) -> None:
    """A `Tell` that discards events."""


# -- policy and role -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plan:
    """A policy and its configuration."""

    policy: type[Policy]
    cfg: PolicyConfig


@dataclass(frozen=True, slots=True)
class Role:
    """How a node behaves towards its peers. Only a lab assigns a role other than HONEST."""

    policy: Callable[[type[Policy]], type[Policy]] = lambda cls: cls
    guard: Callable[[GuardSettings], GuardSettings] = lambda settings: settings
    score: Callable[[Eval], Eval] = lambda score: score  # applied to its scores of peers' models
    poison: Poison | None = None  # modifies its task
    honest: bool = True


HONEST = Role()
RoleOf = Callable[["Settings", int | None, int | None], Role]  # settings, index, number of nodes


# -- learning --------------------------------------------------------------------------------------------------


class LearnerFacts(Protocol):
    """Properties of a learner that need no computation."""

    @property
    def layout(self) -> Layout: ...
    @property
    def private_layout(self) -> Layout:
        """The tensors that never leave the node."""
        ...

    @property
    def predictions(self) -> Layout | None: ...
    @property
    def samples(self) -> int: ...
    @property
    def cluster(self) -> int | None: ...
    @property
    def account(self) -> DpAccount: ...
    @property
    def headline(self) -> Headline: ...
    @property
    def stateful(self) -> bool:
        """Whether the node keeps a local state, which the learner's `start` creates."""
        ...


@dataclass(frozen=True, slots=True)
class Trained:
    """The result of a training job that was given a local state."""

    model: Model
    state: LocalState


@dataclass(frozen=True, slots=True)
class Job:
    """A call of a learner's method as a value, so that another thread or process can run it."""

    kind: Kind
    models: Model | Sequence[Model] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    state: LocalState | None = None  # None: the node keeps none

    def run(self, learner: Any, **more: Any) -> Any:
        given = () if self.models is None else (self.models,)
        method = getattr(learner, self.kind)
        if self.state is None:
            return method(*given, **self.options, **more)
        cell = StateCell(self.state)
        answer = method(*given, **self.options, state=cell, **more)
        return Trained(answer, cell.state) if self.kind in TRAINING else answer


class Trainer(Protocol):
    """Runs the jobs of one node."""

    async def open(self, account: DpAccount) -> LearnerFacts:
        """Load the node's data and model."""
        ...

    async def do(self, job: Job) -> Any:
        """Run a long job; jobs run first come, first served."""
        ...

    async def soon(self, job: Job, spent: Callable[[float], None] | None = None) -> Any:
        """Run a short job between the batches of a long one. `spent` is called with its running time in seconds,
        excluding the time in the queue."""
        ...

    async def combine(self, rule: AggregateSettings, step: Average) -> Model: ...


# -- other nodes -----------------------------------------------------------------------------------------------


class Network(Protocol):
    """Calls to peers. They raise PeerGone, or Refused with the reason. Incoming calls go to the node's Host."""

    async def serving(self, ready: bool) -> None:
        """Set whether health checks report that this node accepts models."""
        ...

    async def send(
        self,
        peer: PeerId,
        address: str,
        model: Model,
        *,
        round: int | None = None,
        tag: int = 0,
        samples: int = 0,
        notes: Mapping[str, float] | None = None,
        vectors: Mapping[str, Model] | None = None,
    ) -> int:
        """Push a model; returns the number of bytes transferred."""
        ...

    def transferring(self, peer: PeerId) -> bool:
        """Whether a model is being sent to the peer, and its bytes are moving."""
        ...

    async def evaluate(self, peer: PeerId, address: str, model: Model) -> Eval: ...
    async def fetch(
        self,
        peer: PeerId,
        address: str,
        part: Part,
        layout: Layout,
        *,
        vectors: Mapping[str, Part] | None = None,
        whole: bool = False,
    ) -> Offer:
        """`vectors`: what the answer must contain beside the model. `whole`: it must not be partial."""
        ...

    def forget(self, peer: PeerId) -> None:
        """The peer is dead or has left: abort the calls to it."""
        ...

    async def close(self) -> None: ...


class MembersListener(Protocol):
    """Called when the membership changes. A peer that begins a new round does not trigger a call."""

    def changed(self) -> None: ...
    def gone(self, peer: PeerId) -> None:
        """The peer died or left."""
        ...

    def refused(self, reason: str) -> None:
        """This node may not join."""
        ...


class Members(Protocol):
    """The other nodes of the run that this node knows. Mappings are live views."""

    listener: MembersListener | None

    @property
    def joined(self) -> bool: ...
    @property
    def pauses(self) -> int:
        """How often this process was suspended for long."""
        ...

    async def start(self, address: str) -> None:
        """Become a member that peers reach at this address."""
        ...

    def alive(self) -> Mapping[PeerId, str]:
        """The addresses of the peers believed alive, sorted by id."""
        ...

    def rounds(self) -> Mapping[PeerId, int]:
        """The rounds of the peers believed alive."""
        ...

    async def swarm_round(self) -> int:
        """The round begun by half of the peers that report about themselves, so that no single peer decides."""
        ...

    def finished(self) -> Sequence[PeerId]:
        """Peers that completed their last round and left, sorted."""
        ...

    def everyone(self) -> tuple[PeerId, ...]:
        """Peers that are alive or have finished, sorted."""
        ...

    def announce(self, round: int) -> None:
        """Publish the round that this node is in."""
        ...

    def ask(self, peers: Iterable[PeerId]) -> None:
        """Request the current rounds of these peers."""
        ...

    async def leave(self) -> None: ...
    async def close(self) -> None: ...


# -- disk and operator -----------------------------------------------------------------------------------------


class Identity(Protocol):
    @property
    def id(self) -> PeerId: ...
    @property
    def incarnation(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Kept:
    """A checkpoint loaded from the store."""

    state: Mapping[str, Any]
    name: str = ""
    writer: str | None = None  # the id of the node that wrote it


class Store(Protocol):
    """State that outlives the process. Writes raise StoreError."""

    @property
    def identity(self) -> Identity: ...
    @property
    def slot(self) -> int:
        """The number of this store, counted from 0; raises ConfigError if it has none."""
        ...

    def keep_incarnation(self, incarnation: int) -> None: ...
    def open_journal(self) -> None: ...
    def write(self, event: str, data: Mapping[str, Any]) -> None:
        """Append a line to the journal."""
        ...

    def sync(self) -> None:
        """Flush the journal to disk, so that it survives a power failure."""
        ...

    def last_round(self) -> int | None:
        """The last round in the journal."""
        ...

    def load_checkpoint(self, layout: Layout, facts: Mapping[str, str]) -> Kept | None:
        """The last checkpoint; raises StoreError if its facts differ from these."""
        ...

    def save_checkpoint(self, state: Mapping[str, Any], layout: Layout, facts: Mapping[str, str]) -> None: ...
    @property
    def saves_models(self) -> bool:
        """Whether `save_model` writes anything."""
        ...

    def save_model(
        self,
        model: Model,
        learner: LearnerFacts,
        facts: Mapping[str, str],
        state: LocalState | None = None,
        *,
        best: bool = False,
    ) -> None:
        """Write the personal model, including its private part; with `best` the one that was best on the
        validation data."""
        ...

    def privacy(self, settings: Settings, *, certain: bool) -> PrivacyControls:
        """The privacy controls, including the budget that earlier processes spent."""
        ...

    def close_journal(self) -> None: ...
    def close(self) -> None: ...


class Log(Protocol):
    """The part of a structlog logger that a node uses."""

    def debug(self, event: str, **facts: Any) -> Any: ...
    def info(self, event: str, **facts: Any) -> Any: ...
    def warning(self, event: str, **facts: Any) -> Any: ...
    def error(self, event: str, **facts: Any) -> Any: ...


class JournalWriter(Protocol):
    def write(self, event: str, data: Mapping[str, Any]) -> None: ...


class Observer(Protocol):
    """Shows the node to an operator."""

    def tell(self, kind: str, data: Mapping[str, Any]) -> None: ...
    def warn(self, text: str, **facts: Any) -> None: ...
    def begins(self, policy: Policy, learner: LearnerFacts, journal: JournalWriter) -> None:
        """The node has joined, and its policy starts."""
        ...

    def guarded(self, event: str, data: Mapping[str, Any]) -> None:
        """The guard refused a model or quarantined a peer."""
        ...
