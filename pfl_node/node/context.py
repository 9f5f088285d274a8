"""The parts of a node that its driver uses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from pfl_node.errors import PeerError
from pfl_node.node.async_compressor import AsyncCompressor
from pfl_node.node.clock import WallClock, now
from pfl_node.node.lookahead import Lookahead
from pfl_node.node.notifier import Notifier
from pfl_node.node.ports import LearnerFacts, Network, Trainer
from pfl_node.protocol.deadlines import Deadlines
from pfl_node.protocol.guard.guard import Guard
from pfl_node.protocol.mailbox import Mailbox
from pfl_node.protocol.privacy.pair_noise import SharedSecret, no_secret
from pfl_node.settings import Settings
from pfl_node.settings.compress_type import NONE
from pfl_node.settings.sections import GuardSettings
from pfl_node.steps import Publish, Record, Report
from pfl_node.types import PeerId

Hold = Callable[[Report | None], Awaitable[None]]


class RecorderPort(Protocol):
    """Implemented by `node/recorder.py`."""

    def record(self, step: Record) -> None: ...
    def published(self, step: Publish) -> None: ...
    async def report(self, step: Report) -> None: ...
    async def pauses(self, next_round: Mapping[str, Any]) -> None: ...
    def failed(self, call: str, error: PeerError) -> None: ...
    def too_slow(self, peer: PeerId) -> None: ...
    def gave_up(self, round: int, peers: Sequence[PeerId], seconds: float) -> None: ...


class PeersPort(Protocol):
    """Implemented by `node/peers.py`."""

    def __call__(self) -> Mapping[PeerId, str]: ...
    def rounds(self) -> Mapping[PeerId, int]: ...
    async def swarm_round(self) -> int: ...
    def everyone(self, *, finished: bool) -> tuple[PeerId, ...]: ...
    def ask(self, peers: Iterable[PeerId]) -> None: ...
    def unfinished(self) -> Mapping[PeerId, int]: ...
    def announce_start(self, round: int) -> None: ...
    def announce_finished(self) -> None: ...


class WorkCount:
    """The models trained and scored so far, and the seconds spent on them."""

    def __init__(self) -> None:
        self.models: Counter[str] = Counter()  # "trained", "differentiated", "scored", "measured"
        self.seconds = 0.0  # including the wait for the trainer
        self.training = 0.0  # seconds of the last training

    @contextmanager
    def of(self, kind: str, models: int = 1) -> Iterator[None]:
        began = now()
        yield
        self.models[kind] += models
        self.seconds += (elapsed := now() - began)
        if kind == "trained":
            self.training = elapsed


@dataclass(frozen=True, slots=True)
class NodeContext:
    settings: Settings
    learner: LearnerFacts
    trainer: Trainer
    network: Network
    mailbox: Mailbox
    deadlines: Deadlines  # estimates when models of a round arrive
    notifier: Notifier  # notifies of models and of changes in membership
    peers: PeersPort
    recorder: RecorderPort
    work: WorkCount
    wall: WallClock = field(default_factory=WallClock)
    hold: Hold | None = None  # awaited before every step and after every Report: the policy can pause there
    compressor: AsyncCompressor = field(default_factory=lambda: AsyncCompressor(NONE, PeerId("")))
    shared_secret: SharedSecret = no_secret
    guard: Guard = field(default_factory=lambda: Guard(GuardSettings(), certain=False))
    lookahead: Lookahead = field(default_factory=lambda: Lookahead(0.0))
