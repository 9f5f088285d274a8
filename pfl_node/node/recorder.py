"""Records the progress of a policy: journal, measurements, checkpoints, the published model.

Handles `Record` and `Report`. Independent of the network; the policy never sees the measurements on test data.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pfl_node import __version__
from pfl_node.errors import PeerError, Reason, Refused, StoreError
from pfl_node.model import Layout, LocalState, Model
from pfl_node.node.best_model import BEST, is_exhausted, tracker_of
from pfl_node.node.clock import now
from pfl_node.node.context import WorkCount
from pfl_node.node.lookahead import LOOKAHEAD, Lookahead
from pfl_node.node.ports import Job, LearnerFacts, Log, Store, Tell, Trainer, discard_event
from pfl_node.node.slow_sends import TOO_SLOW
from pfl_node.policies.base import Policy
from pfl_node.settings import Settings
from pfl_node.steps import DIVERGED, OUT_OF_MEMORY, Publish, Record, Report
from pfl_node.types import ACCURACY, Eval, PeerId

# The peer has another model, run or policy, or its answer budget is spent: retrying does not help.
MISFIT = frozenset(
    r.value for r in (Reason.LAYOUT, Reason.UNKNOWN_RUN, Reason.VERSION, Reason.NOT_SERVED, Reason.BUDGET)
)

# Beside the policy's snapshot in a checkpoint: the local state, and the compressor's state.
LOCAL, SENT = "local", "sent"

Observer = Callable[[str, Mapping[str, Any]], None]


def checkpoint_facts(settings: Settings, policy: Policy) -> dict[str, str]:
    """A node resumes from a checkpoint only if these are equal."""
    return {"run": settings.run, "task": settings.task.name, "policy": type(policy).__name__}


def restore_checkpoint(
    policy: Policy, settings: Settings, store: Store, layout: Layout, *, warn: Callable[[str], None], log: Log
) -> Mapping[str, Any]:
    """Restore the policy from the last checkpoint, if there is one; returns the content of it."""
    if found := store.load_checkpoint(layout, checkpoint_facts(settings, policy)):
        policy.restore(found.state)
        log.info("continuing from the checkpoint", round=policy.round, file=found.name)
        if found.writer not in (None, policy.me):
            whose = f"{found.name} was written by node {found.writer}, and this is {policy.me}"
            warn(f"{whose}: is it in the right place?")
        best = found.state.get(BEST)
        if is_exhausted(best, settings.train.patience):
            policy.stops_after = policy.round - 1
            warn("stopped early already: raise train.patience, or give another --data-dir")
        elif not policy.more:
            warn("all rounds are done already: give more --rounds, or another --data-dir")
        return found.state
    if (last := store.last_round()) is not None:
        hint = "to continue instead, stop the node and restore checkpoint-* from a backup"
        warn(f"no checkpoint: starting over, although the journal has round {last}; {hint}")
    return {}


def snapshot_of(
    policy: Policy,
    state: LocalState | None,
    best: Mapping[str, Any] | None,
    lookahead: Mapping[str, Any] | None = None,
    sent: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The content of a checkpoint."""
    more = ((LOCAL, state), (BEST, best), (LOOKAHEAD, lookahead), (SENT, sent))
    return {**policy.snapshot(), **{name: value for name, value in more if value is not None}}


class Recorder:
    """Records one run of one node."""

    reports = 0
    given_up = 0  # models that rounds stopped waiting for
    _unsaved = 0  # rounds since the last checkpoint
    _lines_lost = 0  # lines lost since one was written
    _failed_saves = 0  # failed attempts since the last checkpoint
    _logged = 0.0  # time of the last round in the log
    unwritten: tuple[str, ...] = ()  # files that the last save could not write
    _unwritten_best: dict[str, str] | None = None  # the metadata of a best model that is not on disk
    _written: tuple[Model, LocalState | None, dict[str, str]] | None = None  # the personal model on disk

    def __init__(
        self,
        settings: Settings,
        store: Store,
        policy: Policy,
        learner: LearnerFacts,
        trainer: Trainer,
        *,
        work: WorkCount,
        log: Log,
        publish: Callable[[Publish], None],
        ended: Callable[[int], int | None],
        observe: Observer | None = None,
        tell: Tell = discard_event,
        stops: bool = True,
        local: Callable[[], LocalState | None] = lambda: None,
        lookahead: Lookahead | None = None,
        sent: Callable[[], Mapping[str, Any] | None] = lambda: None,
    ) -> None:
        self.settings = settings
        self.store = store
        self.policy = policy
        self.learner = learner
        self.trainer = trainer
        self.work = work
        self.stops = stops  # whether the node may be shut down cleanly, and then writes its last state
        self.log = log
        self.publish = publish
        self.ended = ended  # called after every round; returns the round to catch up with, if any
        self.observe = observe
        self.local = local  # the node's local state
        self.lookahead = lookahead or Lookahead(0.0)
        self.sent = sent  # the compressor's state
        self.tell = tell  # events for an operator
        self.best = tracker_of(settings, written=store.saves_models)
        self.measured: dict[str, Eval] = {}  # scores of the personal model, by split
        self.reported: dict[str, Any] = {}  # data of the last Report, and of the last Record of each event
        self.failures: Counter[tuple[str, str]] = Counter()  # failed outgoing calls: (call, reason)
        store.open_journal()
        self._checkpoint: int | None = None  # round of the last checkpoint of this process
        self._last_measured: tuple[Model, int] | None = None
        self._snapshot: dict[str, Any] | None = None
        self._kept: dict[str, Any] | None = None  # the snapshot on disk
        self._misfits: set[tuple[str, str]] = set()  # (peer, reason) of failed calls; misfits warn only once
        self._saving = threading.Lock()  # after a stop, the thread of a cancelled save may still be writing

    def write(self, event: str, data: Mapping[str, Any]) -> None:
        """If the disk is full, the line is lost and training continues."""
        try:
            self.store.write(event, data)
        except StoreError as error:
            self._line_lost(event, error)
        else:
            if self._lines_lost:
                self.log.info("the journal can be written again", lines_lost=self._lines_lost)
            self._lines_lost = 0
        if self.observe:
            self.observe(event, data)

    def _line_lost(self, event: str, error: StoreError) -> None:
        """Report the first, second, fourth, eighth … lost line only: a disk stays full for many rounds."""
        self._lines_lost += 1
        if self._lines_lost & (self._lines_lost - 1):
            return
        facts = {"lost": event, "lines_lost": self._lines_lost, "error": str(error)}
        self.log.error("a line of the journal was not written; training goes on", **facts)
        self.tell("warning", {"text": "a line of the journal was not written", "error": str(error)})

    # -- called by the driver ------------------------------------------------------------------------------

    def record(self, step: Record) -> None:
        self.reported[step.event] = dict(step.data)
        self.tell("told", {**step.data, "what": step.event})
        if step.event == DIVERGED:
            self.log.warning("the training diverged, and its result was discarded", **step.data)
        if step.event == OUT_OF_MEMORY:
            self.log.warning("the training was skipped, and the model stays as it was", **step.data)
        self.write(step.event, step.data)

    def published(self, step: Publish) -> None:
        self.publish(step)

    async def report(self, step: Report) -> None:
        """A round is complete: publish its model, measure if due, write the journal, save a checkpoint if due."""
        self.reports += 1
        if step.publish:
            self.publish(Publish(step.model, step.round, step.tag, step.notes, step.vectors))
        ahead = self.ended(step.round)
        self.reported["round"] = dict(step.data)
        due = (step.round + 1) % self.settings.eval.every == 0
        row: dict[str, Any] = {**step.data, "round": step.round}
        if due:
            row |= await self.measure(step.model, step.round)
            self._compare(step)
        row |= self.learner.account.facts()
        row["learning_seconds"] = round(self.work.seconds, 4)
        self.write("round", row)
        self.tell("round", row)
        self._log(row)
        if due and self.best.exhausted:
            self._stop_early(step)
        if ahead is not None:
            self.log.info("catching up", round=step.round, swarm=ahead)
            self.write("catching_up", {"round": step.round, "swarm": ahead})
        self._unsaved += 1
        due = self._unsaved >= self.settings.store.checkpoint_every
        if due or self.stops:
            state, best, steps = self.local(), self.best.dump(), self.lookahead.dump()
            self._snapshot = snapshot_of(self.policy, state, best, steps, self.sent())
        if due and self._snapshot is not None:
            await self._save(self._snapshot["model"], self._snapshot.get(LOCAL))

    async def pauses(self, next_round: Mapping[str, Any]) -> None:
        """The next round begins much later: write the last one, and tell the operator."""
        if self._unsaved and self._snapshot is not None:
            await self._save(self._snapshot["model"], self._snapshot.get(LOCAL))
        facts = {**next_round, "at": next_round["at"] or "when another node joins"}
        self.log.info("waiting for the next round", **facts)
        self.tell("waiting", next_round)

    def _compare(self, step: Report) -> None:
        """Keep the model if it is the best so far on the validation data."""
        if "val" not in self.measured:
            return
        quality = self.measured["val"].quality
        if self.best.add(quality, step.round, step.model, self.local()):
            facts = {"metric": self.learner.headline.name, "quality": f"{quality:.6g}", "round": str(step.round)}
            self._unwritten_best = self._facts() | facts

    def _stop_early(self, step: Report) -> None:
        """This round is the last one, and the best model is the node's model from now on."""
        best, last = self.best.final, self.policy.rounds
        if best is None or best.model is None or (last is not None and step.round + 1 >= last):
            return
        self.policy.stops_after, self.policy.model = self.policy.round, best.model
        if not self.policy.lockstep:  # in lockstep, all peers expect the model of this round
            self.publish(Publish(best.model, step.round, step.tag, step.notes, step.vectors))
        row = {"round": step.round, "back_to": best.round, "why": "train.patience"}
        self.log.info("no better validation result: stopping early", **row)
        self.write("stopped", row)
        self.tell("told", {**row, "what": "stopped"})

    def failed(self, call: str, error: PeerError) -> None:
        why = error.reason.value if isinstance(error, Refused) else "gone"
        self.failures[call, why] += 1
        self.tell("failed", {"call": call, "peer": error.peer, "reason": why, "text": error.text})
        news = why in MISFIT and (error.peer, why) not in self._misfits
        self._misfits.add((error.peer, why))
        (self.log.warning if news else self.log.debug)(
            "call failed", call=call, peer=error.peer, why=why, text=error.text
        )

    def too_slow(self, peer: PeerId) -> None:
        self.log.warning(TOO_SLOW, peer=peer)
        self.tell("warning", {"text": TOO_SLOW, "peer": peer})

    def gave_up(self, round: int, peers: Sequence[PeerId], seconds: float) -> None:
        """A round stopped waiting for these peers, whose models had not arrived in time."""
        self.given_up += len(peers)
        row = {"round": round, "peers": list(peers), "seconds": float(f"{seconds:.3f}")}
        self.write("given_up", row)
        self.tell("given_up", row)
        self.log.debug("gave up", **row)

    def _log(self, row: Mapping[str, Any]) -> None:
        """Log a round, at most once a second."""
        if now() - self._logged >= 1.0:
            self._logged = now()
            names = dict.fromkeys(("loss", "accuracy", self.learner.headline.name))
            known = {f"val_{k}": round(row[f"val_{k}"], 4) for k in names if f"val_{k}" in row}
            self.log.info("round", round=row["round"], **known)

    # -- measurements and files ----------------------------------------------------------------------------

    async def measure(self, model: Model, round: int) -> dict[str, float]:
        """Score the personal model on the splits of `eval.on`, between the batches of any training."""
        for split in self.settings.eval.on:
            job = Job("score", (model,), {"split": split})
            with self.work.of("measured"):
                self.measured[split] = (await self.trainer.soon(job))[0]
        self._last_measured = (model, round)
        return self._figures()

    async def finish(self, how: str) -> None:
        """Write the last measurement, checkpoint and personal model."""
        row: dict[str, Any] = {"how": how, "round": self.policy.round}
        model, state = self.policy.model, self.local()
        if how != "done" and self._snapshot:
            model, state = self._snapshot["model"], self._snapshot.get(LOCAL)
        if how == "done":
            if self._last_measured is None or self._last_measured[0] is not model:
                await self.measure(model, self.policy.round)
            row |= self._figures()
        await self._save(model, state)
        self.write("finished", row)
        self.tell("finished", row)

    @property
    def measured_model(self) -> Model | None:
        """The model that the scores in `measured` belong to."""
        return self._last_measured[0] if self._last_measured else None

    def close(self) -> None:
        self.store.close_journal()

    def written(self) -> dict[str, Any]:
        """The state of the writes, without error texts, because peers may see it."""
        failed = {"failed_checkpoints": self._failed_saves, "lost_lines": self._lines_lost}
        return {"checkpoint_round": self._checkpoint, **failed}

    async def _save(self, model: Model, state: LocalState | None) -> None:
        """Write the checkpoint and the personal model in a thread, and report the outcome."""
        began, facts = now(), self._facts()
        outcome = await asyncio.to_thread(self._save_all, model, state, facts)
        if outcome is None:
            return
        outcome["seconds"] = round(now() - began, 4)
        failed = "error" in outcome
        self._failed_saves = self._failed_saves + 1 if failed else 0
        self._checkpoint = outcome.get("round", self._checkpoint)
        self.tell("checkpoint_failed" if failed else "checkpoint", outcome)

    def _save_all(self, model: Model, state: LocalState | None, facts: dict[str, str]) -> dict[str, Any] | None:
        """Returns the outcome of the checkpoint. If the disk is full, training continues."""
        with self._saving:
            best = self._save_best()  # first: a checkpoint must not name a best model that is not on disk
            outcome = self._save_checkpoint()
            written = {
                "the last checkpoint": "error" not in (outcome or {}),
                "model.safetensors": self._save_model(model, state, facts),
                "best.safetensors": best,
            }
            self.unwritten = tuple(name for name, well in written.items() if not well)
        return outcome

    def _save_checkpoint(self) -> dict[str, Any] | None:
        """Returns the outcome; None: nothing to save."""
        snapshot = self._snapshot
        if snapshot is None or snapshot is self._kept:
            return None
        self._unsaved = 0  # even on failure: the next attempt is a full interval later
        self._sync_journal()
        try:
            self.store.save_checkpoint(snapshot, self.learner.layout, checkpoint_facts(self.settings, self.policy))
            self._kept = snapshot
        except StoreError as error:
            self.log.error("the checkpoint was not written; training goes on", error=str(error))
            return {"error": str(error)}
        return {"round": self.policy.round}

    def _save_model(self, model: Model, state: LocalState | None, facts: dict[str, str]) -> bool:
        known = self._written
        if known is not None and known[0] is model and known[1] is state and known[2] == facts:
            return True
        try:
            self.store.save_model(model, self.learner, facts, state)
            self._written = model, state, facts
        except StoreError as error:
            self.log.error("the personal model was not written", error=str(error))
            return False
        return True

    def _save_best(self) -> bool:
        best, facts = self.best.best, self._unwritten_best
        if best is None or best.model is None or facts is None:
            return True
        try:
            self.store.save_model(best.model, self.learner, facts, best.state, best=True)
        except StoreError as error:
            self.log.error("the best model was not written", error=str(error))
            return False
        if self._unwritten_best is facts:  # no better model was found meanwhile
            self._unwritten_best = None
            self.best.forget_model()
        return True

    def _sync_journal(self) -> None:
        """Sync before a checkpoint, so that its rounds are in the journal even after a power failure."""
        try:
            self.store.sync()
        except StoreError as error:
            self.log.warning("the end of the journal may be lost in a power failure", error=str(error))

    def _facts(self) -> dict[str, str]:
        """The metadata of model.safetensors."""
        facts = {
            "version": __version__,
            "node": self.policy.me,
            "run": self.settings.run,
            "policy": self.settings.policy.name,
            "task": self.settings.task.name,
            "round": str(self.policy.round),
            "layout": self.learner.layout.digest,
            "samples": str(self.learner.samples),
        }
        if self.learner.layout.frozen:
            facts["frozen"] = self.learner.layout.frozen  # the digest of the base model, which is not in the file
        if self._last_measured:
            facts["measured_round"] = str(self._last_measured[1])
        return facts | {name: f"{figure:.6g}" for name, figure in self._figures().items()}

    def _figures(self) -> dict[str, float]:
        return {f"{s}_{name}": value for s, found in self.by_split().items() for name, value in found.items()}

    def by_split(self) -> dict[str, dict[str, float]]:
        """The figures of the personal model."""
        classes = self.learner.headline == ACCURACY
        return {split: found.figures(classes=classes) for split, found in self.measured.items()}
