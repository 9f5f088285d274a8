"""Calls to peers. The answer omits peers that are gone or refuse; recorder and guard get the reason."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from pfl_node.errors import PeerError, Reason, Refused
from pfl_node.model import Model, PartialModel
from pfl_node.node.clock import now
from pfl_node.node.context import NodeContext
from pfl_node.node.waiting import PendingWaits
from pfl_node.steps import Ask, Fetch, Send
from pfl_node.types import Eval, Offer, PeerId, expected_vectors

T = TypeVar("T")
Call = Callable[[PeerId, str], Awaitable[T]]  # called with a peer and its address
ANSWERED = frozenset({"Fetch", "EvaluateModel"})  # calls whose answer can be invalid
SPOILED = frozenset({Reason.NOT_FINITE, Reason.CHECKSUM, Reason.BOMB, Reason.TOO_LARGE, Reason.GARBAGE})


class Calls:
    """One per driver."""

    def __init__(self, context: NodeContext, waits: PendingWaits) -> None:
        self._context = context
        self._waits = waits
        self._pulls = asyncio.Semaphore(context.settings.wire.concurrency)  # limits concurrent requests

    async def fetch(self, step: Fetch, mine: Model) -> tuple[Offer, ...]:
        learner, network = self._context.learner, self._context.network
        layout = learner.predictions if step.part == "predictions" else learner.layout.of(step.part)
        if layout is None:
            return ()
        vectors = expected_vectors(self._context.mailbox.vectors, step.part)

        async def pull(peer: PeerId, address: str) -> Offer:
            offer = await network.fetch(peer, address, step.part, layout, vectors=vectors, whole=step.whole)
            if step.whole and isinstance(offer.model, PartialModel):
                raise Refused(Reason.LAYOUT, f"asked for the whole {step.part}, got a partial one", peer)
            return offer

        found = await self._each("Fetch", step.peers, pull)
        return self._context.guard.fetched(found.values(), mine, now())

    async def ask(self, step: Ask) -> dict[PeerId, Eval]:
        network = self._context.network
        return await self._each("EvaluateModel", step.peers, lambda p, a: network.evaluate(p, a, step.model))

    async def push(self, peer: PeerId, step: Send) -> int | PeerError | None:
        """The bytes transferred, the error, or None if the peer is unknown."""
        model, compressor = step.model, self._context.compressor
        if compressor.how.kind and not step.whole:
            (model,) = await compressor.compress(model, [peer], step.round, step.base)
        said = {
            "round": step.round,
            "tag": step.tag,
            "notes": step.notes,
            "vectors": step.vectors,
            "samples": self._context.learner.samples,
        }
        return await self._reach(
            "SendModel",
            peer,
            lambda p, a: self._context.network.send(p, a, model, **said),  # type: ignore[arg-type]
        )

    async def _each(self, call: str, peers: Iterable[PeerId], go: Call[T]) -> dict[PeerId, T]:
        """Call these peers, as many at a time as the settings allow. Quarantined peers are not called, because
        their answers would be discarded."""
        once = self._context.guard.free(dict.fromkeys(peers), now())
        with self._waits.on(call) as wait:
            wait.peers = still = dict.fromkeys(once)

            async def pull(peer: PeerId) -> T | PeerError | None:
                async with self._pulls:
                    answer = await self._reach(call, peer, go)
                del still[peer]
                return answer

            answers = await asyncio.gather(*map(pull, once))
        pairs = zip(once, answers, strict=True)
        return {p: a for p, a in pairs if a is not None and not isinstance(a, PeerError)}

    async def _reach(self, call: str, peer: PeerId, go: Call[T]) -> T | PeerError | None:
        address = self._context.peers().get(peer)
        if address is None:
            return None
        try:
            return await go(peer, address)
        except PeerError as error:
            if isinstance(error, Refused) and error.reason is Reason.STALE_ROUND:
                self._context.mailbox.refused_as_stale(peer, error.round)
                self._context.notifier.notify("rounds")
            if isinstance(error, Refused) and call in ANSWERED and error.reason in SPOILED:
                self._context.guard.offence(peer, error.reason, now())
            self._context.recorder.failed(call, error)
            return error
