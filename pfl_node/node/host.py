"""Handles the calls of peers: admission, delivery of models, scoring, serving and accounting.

The network calls the host; the host calls no other node, so a caller never waits for a third node.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

from pfl_node.errors import Reason, Refused
from pfl_node.failpoints import failpoint
from pfl_node.model import Layout, Model
from pfl_node.node.async_compressor import AsyncCompressor
from pfl_node.node.clock import now
from pfl_node.node.notifier import Notifier
from pfl_node.node.ports import HONEST, Job, LearnerFacts, Role, Tell, Trainer, discard_event
from pfl_node.protocol.guard.guard import Guard
from pfl_node.protocol.mailbox import Mailbox
from pfl_node.protocol.privacy.noisy_scores import NoisyScores
from pfl_node.protocol.published import PublishedModels
from pfl_node.protocol.rate_limit import BoundedCounter, EffortLimit, RateLimit
from pfl_node.settings import ServeSettings
from pfl_node.settings.compress_type import NONE
from pfl_node.settings.sections import GuardSettings
from pfl_node.steps import Publish
from pfl_node.types import Envelope, Eval, Offer, Part, PeerId, weight

MODEL_CALLS = frozenset({"SendModel", "EvaluateModel"})  # calls that carry a model
SERVED = frozenset({"GetHead", "GetModel", "GetPredictions"})
NON_MEMBER_CALLS = frozenset({"SendModel", "GetOffset"})  # allowed before this node knows the sender as a member
MAX_ID = 64  # characters; a longer sender id is refused
INDEXED_NUMBER_BYTES = 8  # a number of a partial model and its index
OTHERS = PeerId("others")  # total of the callers that a BoundedCounter dropped


class Host:
    """The node as its peers see it."""

    def __init__(
        self,
        me: PeerId,
        run: str,
        settings: ServeSettings,
        mailbox: Mailbox,
        notifier: Notifier,
        window: PublishedModels,
        guard: Guard | None = None,
        mine: Callable[[], Model | None] = lambda: None,
        oracle: NoisyScores | None = None,
        role: Role = HONEST,
        scores: bool = True,
        compressor: AsyncCompressor | None = None,
    ) -> None:
        self.me = me
        self.run = run
        self.settings = settings
        self.mailbox = mailbox
        self.notifier = notifier
        self.calls: Counter[tuple[str, str]] = Counter()  # (call, "ok" or the reason)
        self.received: Counter[PeerId] = BoundedCounter(OTHERS)  # models, by sender
        self.served: Counter[PeerId] = BoundedCounter(OTHERS)  # models and parts that peers fetched
        self.moved: Counter[tuple[PeerId, Literal["in", "out"]]] = BoundedCounter()  # bytes of successful calls
        self.bytes_in = self.bytes_out = 0
        self.tell: Tell = discard_event
        self.guard = guard or Guard(GuardSettings(), certain=False)
        self.member: Callable[[PeerId], bool] = lambda _: True  # whether the caller is a member of the run
        self.mine = mine  # my personal model; the guard compares received models with it
        self.oracle = oracle  # adds noise and enforces a budget; None: exact scores
        self._role = role
        self._scores = scores  # the policy and the privacy settings let peers ask for scores
        self._taking = RateLimit(settings.models_per_minute)
        self._scoring = RateLimit(settings.scores_per_minute)
        self._effort = EffortLimit(settings.scoring)
        self._fetching = RateLimit(settings.fetches_per_minute)
        self._busy: Counter[PeerId] = Counter()  # evaluations in progress, by peer
        self._scoring_bytes = 0  # of all models being scored
        self._whole = 0  # bytes of one model
        self._learning: tuple[LearnerFacts, Trainer] | None = None
        self.window, self.compressor = window, compressor or AsyncCompressor(NONE, me)

    def open(self, learner: LearnerFacts, trainer: Trainer) -> None:
        """Accept calls from now on."""
        self._learning = (learner, trainer)
        self._whole = learner.layout.nbytes

    def close(self) -> None:
        """Refuse calls from now on."""
        self._learning = None

    def publish(self, step: Publish) -> None:
        """Set the answer to GetModel and GetHead or, for predictions, to GetPredictions."""
        self.window.show(step, self._learning[0].samples if self._learning else 0)

    # -- called by the server ------------------------------------------------------------------------------

    def layout(self, part: Part) -> Layout:
        if self._learning is None:
            raise Refused(Reason.NOT_READY, "this node is starting or stopping; try again later")
        learner = self._learning[0]
        if part != "predictions":
            return learner.layout.of(part)
        if learner.predictions is None:
            raise Refused(Reason.LAYOUT, "this node's task has no auxiliary samples, so no predictions")
        return learner.predictions

    def admit(self, call: str, envelope: Envelope) -> None:
        """Raises Refused. Every admitted call ends in `deliver`, `evaluate`, `serve` or `cancel`."""
        self._check(call, envelope)
        if failpoint("admit"):
            raise Refused(Reason.FLOOD, "not admitted: fail point admit", envelope.sender)
        sender = PeerId(envelope.sender)
        if call in MODEL_CALLS:
            self.guard.admit(sender, now())
        if call == "SendModel":
            self._taking.take(sender, now())
            if envelope.round is not None:
                self.notifier.notify("rounds")  # even a refused header shows its sender's round
            self.mailbox.admit(sender, envelope.round, envelope.part, self._size(envelope), envelope.vectors)
            return
        if call == "EvaluateModel":
            self._effort.check(sender, now(), sum(self._busy.values()))
            if self.oracle:
                self.oracle.admit(sender)
        rate = self._scoring if call == "EvaluateModel" else self._fetching
        rate.take(sender, now())
        if call == "EvaluateModel":
            self._begin(sender, self._whole + weight(envelope.notes))

    def _size(self, envelope: Envelope) -> int:
        """Bytes in memory of the message with this header."""
        model = self.layout(envelope.part).nbytes
        if envelope.present is not None:
            model = min(INDEXED_NUMBER_BYTES * envelope.present, 2 * model)
        return model + sum(self.layout(p).nbytes for p in envelope.vectors.values()) + weight(envelope.notes)

    def cancel(self, call: str, envelope: Envelope, *, resumes: bool = False) -> None:
        """An admitted call failed before its model was complete. `resumes`: the sender may continue it."""
        if call == "SendModel":
            self.mailbox.cancel(PeerId(envelope.sender), envelope.round, resumes=resumes)
            if not resumes:
                self._mark_unusable(PeerId(envelope.sender), envelope.round)
        elif call == "EvaluateModel":
            self._release(PeerId(envelope.sender), self._whole + weight(envelope.notes))

    def deliver(self, offer: Offer) -> None:
        if self._learning is None:
            self.mailbox.cancel(offer.sender, offer.round)
            raise Refused(Reason.NOT_READY, "this node is stopping", offer.sender)
        try:
            self.guard.examine(offer, self.mine(), now())
        except Refused:
            self.mailbox.cancel(offer.sender, offer.round)
            self._mark_unusable(offer.sender, offer.round)
            raise
        self.mailbox.put(offer)
        self.received[offer.sender] += 1
        self.notifier.notify("inbox" if offer.round is None else "rounds")

    async def evaluate(self, offer: Offer) -> Eval:
        """Score a model on this node's training data, between two batches of its own training."""
        try:
            if self._learning is None:
                raise Refused(Reason.NOT_READY, "this node is stopping", offer.sender)
            if self.oracle:
                score = await self._consult(self.oracle, offer, self._learning[1])
            else:
                job = Job("score", (offer.model,), {"split": "train"})
                score = (await self._work(offer, self._learning[1], job))[0]
            return self._role.score(replace(score, metrics={}))
        finally:
            self._release(offer.sender, offer.nbytes)

    async def _consult(self, oracle: NoisyScores, offer: Offer, trainer: Trainer) -> Eval:
        known = oracle.known(offer.sender, offer.model)
        if known is not None:
            return known
        figures = await self._work(offer, trainer, Job("each", offer.model))
        return await asyncio.to_thread(oracle.answer, offer.sender, offer.model, *figures)  # writes to disk

    async def _work(self, offer: Offer, trainer: Trainer, job: Job) -> Any:
        """Charge the job's running time, without its time in the queue, to the peer."""
        return await trainer.soon(job, lambda seconds: self._effort.done(offer.sender, seconds, now()))

    def serve(self, part: Part) -> Offer:
        """The offer for a peer that fetches, complete."""
        if self._learning is None:
            raise Refused(Reason.NOT_READY, "this node is starting or stopping; try again later")
        return self.window.give(part)

    async def compress(self, offer: Offer, to: PeerId, *, resumes: bool) -> Offer:
        """The part of it that this peer gets; `resumes`: the peer has a beginning of the last one."""
        (model,) = await self.compressor.compress(offer.model, [to], offer.round, fetched=True, resumes=resumes)
        return replace(offer, model=model)

    def count(self, call: str, outcome: str, peer: str, nbytes: int) -> None:
        self.calls[call, outcome] += 1
        facts = {"call": call, "peer": peer[:MAX_ID], "bytes": nbytes}
        if outcome != "ok" and peer:
            self.guard.offence(PeerId(peer[:MAX_ID]), outcome, now())
        if outcome != "ok":  # a refused caller may use any number of invented names of any length
            self.tell("refused", {**facts, "reason": outcome})
        if call in MODEL_CALLS:
            self.bytes_in += nbytes
            if outcome == "ok":
                self.moved[PeerId(peer), "in"] += nbytes
                self.tell("received", facts)
        elif call in SERVED:
            self.bytes_out += nbytes
            if outcome == "ok":
                self.moved[PeerId(peer), "out"] += nbytes
                self.served[PeerId(peer)] += 1
                self.tell("sent", facts)

    @property
    def refused(self) -> dict[str, int]:
        """Number of refused calls, by reason."""
        totals: Counter[str] = Counter()
        for (_, outcome), n in self.calls.items():
            if outcome != "ok":
                totals[outcome] += n
        return dict(sorted(totals.items()))

    def _check(self, call: str, envelope: Envelope) -> None:
        if self._learning is None:
            raise Refused(Reason.NOT_READY, "this node is starting or stopping; try again later")
        if envelope.run != self.run:
            raise Refused(Reason.UNKNOWN_RUN, f"run {envelope.run!r} is unknown here: this is run {self.run!r}")
        if not 0 < len(envelope.sender) <= MAX_ID or not envelope.sender.isascii() or envelope.sender == self.me:
            raise Refused(Reason.UNKNOWN_PEER, f"{envelope.sender[:MAX_ID]!r} is not a valid sender")
        if call not in NON_MEMBER_CALLS and not self.member(PeerId(envelope.sender)):
            raise Refused(Reason.UNKNOWN_PEER, f"{envelope.sender} is not a member; join first", envelope.sender)
        if call == "EvaluateModel" and envelope.part != "model":
            raise Refused(Reason.LAYOUT, f"a {envelope.part} alone cannot be scored", envelope.sender)
        if call == "EvaluateModel" and (envelope.vectors or envelope.present is not None):
            raise Refused(Reason.LAYOUT, "a model to score must be complete, without vectors", envelope.sender)
        if call in SERVED:
            self.window.check(envelope.part)
        if call == "EvaluateModel" and not (self._scores and self.settings.evaluate):
            raise Refused(Reason.NOT_SERVED, f"this node does not serve {call}")

    def _mark_unusable(self, peer: PeerId, round: int | None) -> None:
        """Stop waiting for a peer whose model was unusable, unless someone else may have used its name."""
        if self.guard.certain:
            self.mailbox.mark_unusable(peer, round)
            self.notifier.notify("rounds")

    def _begin(self, peer: PeerId, size: int) -> None:
        if self._busy[peer] >= self.settings.per_peer:
            raise Refused(Reason.FLOOD, f"{self._busy[peer]} of your calls are in progress; slow down", peer)
        if self._scoring_bytes and self._scoring_bytes + size > self.settings.waiting_per_peer:
            raise Refused(Reason.FLOOD, f"{self._scoring_bytes} bytes of models are being scored; try later", peer)
        self._busy[peer] += 1
        self._scoring_bytes += size

    def _release(self, peer: PeerId, size: int) -> None:
        self._scoring_bytes -= size
        self._busy[peer] -= 1
        if self._busy[peer] <= 0:
            del self._busy[peer]
