"""What a node needs of its surroundings. The daemon implements these protocols with gRPC, SWIM, a thread and the
disk; the simulator in memory and in virtual time. Time itself is the running event loop's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from pfl_node.learning.build import Poison
from pfl_node.model import Layout, Model
from pfl_node.policies.base import Policy, PolicyConfig
from pfl_node.settings.sections import GuardSettings
from pfl_node.steps import Average
from pfl_node.types import Eval, Offer, Part, PeerId

if TYPE_CHECKING:
    from pfl_node.protocol.privacy.controls import PrivacyControls
    from pfl_node.protocol.privacy.dp_account import DpAccount
    from pfl_node.settings import AggregateSettings, Settings

Tell = Callable[[str, Mapping[str, Any]], None]
Kind = Literal["fresh", "train", "distill", "predict", "score", "each", "confusion"]


def nobody(kind: str, data: Mapping[str, Any]) -> None:
    """A `Tell` without a listener."""


# -- what a node is to do --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plan:
    """A policy and its knobs."""

    policy: type[Policy]
    cfg: PolicyConfig


@dataclass(frozen=True, slots=True)
class Role:
    """How a node treats the others. Only a lab gives a node another role than HONEST."""

    policy: Callable[[type[Policy]], type[Policy]] = lambda cls: cls
    guard: Callable[[GuardSettings], GuardSettings] = lambda settings: settings
    score: Callable[[Eval], Eval] = lambda score: score  # what it says about a model of a peer
    poison: Poison | None = None  # what becomes of its task
    honest: bool = True


HONEST = Role()
RoleOf = Callable[["Settings", int | None, int | None], Role]  # of the node at a place among so many


# -- learning --------------------------------------------------------------------------------------------------


class LearnerFacts(Protocol):
    """What a node knows of its learner without asking it to compute."""

    @property
    def layout(self) -> Layout: ...
    @property
    def predictions(self) -> Layout | None: ...
    @property
    def samples(self) -> int: ...
    @property
    def cluster(self) -> int | None: ...
    @property
    def account(self) -> DpAccount: ...


@dataclass(frozen=True, slots=True)
class Job:
    """A call of a learner's method, as a value: another thread or process may run it."""

    kind: Kind
    models: Model | Sequence[Model] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def run(self, learner: Any, **more: Any) -> Any:
        given = () if self.models is None else (self.models,)
        return getattr(learner, self.kind)(*given, **self.options, **more)


class Trainer(Protocol):
    """Runs the jobs of one node."""

    async def open(self, account: DpAccount) -> LearnerFacts:
        """Load the node's data and model."""
        ...

    async def do(self, job: Job) -> Any:
        """A long job; jobs run first come, first served."""
        ...

    async def soon(self, job: Job, spent: Callable[[float], None] | None = None) -> Any:
        """A short job, which runs between the batches of a long one. `spent` is called with the seconds that it
        took, without those that it waited."""
        ...

    async def combine(self, rule: AggregateSettings, step: Average) -> Model: ...


# -- other nodes -----------------------------------------------------------------------------------------------


class Network(Protocol):
    """Calls to peers: they raise PeerGone, or Refused with the reason. Peers' calls go to the node's Reception."""

    async def serving(self, ready: bool) -> None:
        """Tell those who check this node's health whether it takes models."""
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
    ) -> int:
        """Push a model; the answer is the number of bytes that moved."""
        ...

    async def evaluate(self, peer: PeerId, address: str, model: Model) -> Eval: ...
    async def fetch(self, peer: PeerId, address: str, part: Part, layout: Layout) -> Offer: ...
    def forget(self, peer: PeerId) -> None:
        """The peer is dead or has left: end the calls to it."""
        ...

    async def close(self) -> None: ...


class MembersListener(Protocol):
    """Called when the members change. A round that a peer begins is no such change."""

    def changed(self) -> None: ...
    def gone(self, peer: PeerId) -> None:
        """The peer died or left."""
        ...

    def refused(self, reason: str) -> None:
        """This node may not join."""
        ...


class Members(Protocol):
    """The other nodes of the run, as far as this one knows. Mappings are views: they change as the members do."""

    listener: MembersListener | None

    @property
    def joined(self) -> bool: ...
    @property
    def pauses(self) -> int:
        """How often this process stood still for long."""
        ...

    async def start(self, address: str) -> None:
        """Become a member that others reach at this address."""
        ...

    def alive(self) -> Mapping[PeerId, str]:
        """The addresses of those believed alive, sorted by id."""
        ...

    def rounds(self) -> Mapping[PeerId, int]:
        """The rounds of those believed alive."""
        ...

    async def swarm_round(self) -> int:
        """The round that half of the peers that report about themselves have begun, so that no single one
        decides."""
        ...

    def finished(self) -> Sequence[PeerId]:
        """Those that did their last round and left, sorted."""
        ...

    def everyone(self) -> tuple[PeerId, ...]:
        """Those alive and those that finished, sorted."""
        ...

    def announce(self, round: int) -> None:
        """This node is in that round."""
        ...

    def ask(self, peers: Iterable[PeerId]) -> None:
        """Let these peers say in which rounds they are."""
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
    """A checkpoint that was found."""

    state: Mapping[str, Any]
    name: str = ""
    writer: str | None = None  # the id of the node that wrote it


class Store(Protocol):
    """What outlives the process. Writing raises StoreError."""

    @property
    def identity(self) -> Identity: ...
    @property
    def slot(self) -> int:
        """Which of several numbered stores this is, from 0 on; raises ConfigError where they have no numbers."""
        ...

    def keep_incarnation(self, incarnation: int) -> None: ...
    def open_journal(self) -> None: ...
    def write(self, event: str, data: Mapping[str, Any]) -> None:
        """Append a line to the journal."""
        ...

    def sync(self) -> None:
        """Let what was written survive a power cut."""
        ...

    def last_round(self) -> int | None:
        """The last round in the journal."""
        ...

    def load_checkpoint(self, layout: Layout, facts: Mapping[str, str]) -> Kept | None:
        """The last checkpoint; raises StoreError when its facts are others."""
        ...

    def save_checkpoint(self, state: Mapping[str, Any], layout: Layout, facts: Mapping[str, str]) -> None: ...
    def save_model(self, model: Model, learner: LearnerFacts, facts: Mapping[str, str]) -> None: ...
    def privacy(self, settings: Settings, *, certain: bool) -> PrivacyControls:
        """The privacy controls, with what earlier lives have spent."""
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
        """The node has joined, and its policy begins."""
        ...

    def guarded(self, event: str, data: Mapping[str, Any]) -> None:
        """The guard refused a model or put a peer into quarantine."""
        ...
