"""One simulated node: its life, its mail, what it tells. Knows no algorithm."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from random import Random
from typing import Any

from pfl_node.model import Model
from pfl_node.node.startup import entry_round, fresh_seed, make_policy
from pfl_node.protocol.guard.guard import Guard
from pfl_node.protocol.mailbox import Mailbox, limits_of
from pfl_node.protocol.privacy.controls import simulated
from pfl_node.protocol.published import PublishedModels
from pfl_node.sim.attacks.malicious import Malicious, lenient, liar
from pfl_node.sim.learner_port import LearnerPort
from pfl_node.sim.message_network import Post
from pfl_node.sim.outcome import NodeRecord
from pfl_node.sim.sim_driver import SimDriver
from pfl_node.sim.sim_host import SimReception
from pfl_node.sim.snapshot import NodeSnapshot, Plan, State
from pfl_node.sim.world import Traffic, World
from pfl_node.steps import Publish, Record, Report
from pfl_node.types import Eval, Offer, PeerId, Split


class SimNode:
    """away -> up -> left; up -> crashed -> up."""

    def __init__(self, id: PeerId, learner: LearnerPort, plan: Plan, world: World, post: Post) -> None:
        self.id = id
        self.learner = learner
        self.world = world
        self.state: State = "away"
        self.traffic = Traffic()
        seed = world.settings.seed
        self.clock = world.clock_of(id)
        self.chance = Random(f"{seed}/network/{id}")  # of its messages and jobs
        self._speed = world.costs.speed(Random(f"{seed}/speed/{id}"))
        self._plan = plan
        self._post = post
        self._checkpoint: dict[str, Any] | None = None
        self._unsaved = 0
        self._reports = 0
        self._told: dict[str, Any] = {}  # the data of the last Report and of the last Records
        self._measured: dict[Split, Eval] = {}
        self._measured_model: Model | None = None
        self._confusion: list[list[int]] | None = None
        self._driver: SimDriver | None = None
        self._held = False
        self.bad = issubclass(plan.policy, Malicious)  # malicious, for the others to bear
        self.privacy = simulated(world.settings, id, learner.account)
        self.host = SimReception(self, liar(world.settings.attack) if self.bad else None)
        self._set_up()

    @property
    def up(self) -> bool:
        return self.state == "up"

    @property
    def waits_for(self) -> str:
        return self._driver.waits_for() if self._driver else "its start"

    # -- life ----------------------------------------------------------------------------------------------

    def _set_up(self) -> None:
        """As a process does when it starts: from the checkpoint, or new."""
        settings, serve = self.world.settings, self.world.settings.serve
        late = settings.round.staleness if self._plan.policy.late else 0
        self.mailbox = Mailbox(limits_of(serve, late), self._plan.policy.takes)
        guard = lenient(settings.guard) if self.bad else settings.guard
        self.guard = Guard(guard, certain=True, tell=self._guarded)
        model = self.learner.fresh(fresh_seed(settings, self.id, 0), "model")
        self.policy = make_policy(self._plan, settings, self.id, self.learner, model)
        self.window = PublishedModels(self.id, serve, self._plan.policy.serves)
        if self._checkpoint:
            self.policy.restore(self._checkpoint)
        self.at_work = self.policy.more  # the others linger as long as somebody is

    def appear(self) -> None:
        """From now on it is reached by others."""
        self.state = "up"
        self.world.running += 1

    def start(self) -> None:
        """Begin the algorithm."""
        if not self.up or self._driver:  # it may have crashed, and come back, before its turn
            return
        self._write("started", round=self.policy.round, samples=self.learner.samples, cluster=self.learner.cluster)
        self._driver = SimDriver(self.policy, self, self.world, self._post, self._finish)
        self._driver.start()

    def start_late(self) -> None:
        """Begin it when others have begun; with a lockstep policy that is in their round."""
        others = [self.world.nodes[p].policy.round for p in self.world.views.alive(self.id)]
        self.policy.round = entry_round(self.policy, others)
        self.mailbox.advance(self.policy.round)
        self.start()

    def crash(self) -> None:
        self.state = "crashed"
        self._stop()
        self._write("crashed")
        self.world.views.crashed(self.id)

    def come_back(self) -> None:
        self._set_up()
        self._write("restarted", round=self.policy.round)

    def _finish(self) -> None:
        """Its main has returned: it measures what it has and leaves, as a daemon does."""
        if self._measured_model is not self.policy.model:
            self._measure(self.policy.model)
        if self._confusion is None:
            self._confusion = self.learner.confusion(self.policy.model)
        self._write("finished", round=self.policy.round, **self._figures())
        self.state, self.at_work = "left", False
        self._stop()
        self.world.views.left(self.id)

    def pause(self) -> NodeSnapshot:
        """The segment is over: whatever is under way is dropped, and this is how it goes on."""
        self.stop()
        known = self.guard.dump()
        return NodeSnapshot(
            *(self.state, self._checkpoint, self.traffic, self._reports, self._told, dict(self._measured)),
            guard=known,
            privacy=self.privacy.dump(),
        )

    def resume(self, held: NodeSnapshot) -> None:
        """Go on from there, instead of from the beginning."""
        self.state, self._checkpoint, self.traffic = held.state, held.checkpoint, held.traffic
        self._reports, self._told, self._measured = held.reports, held.told, held.measured
        self._set_up()
        self.guard.load(held.guard)
        self.privacy = simulated(self.world.settings, self.id, self.learner.account, held.privacy)
        if held.state != "up":
            self.at_work = False

    def stop(self) -> None:
        if self._driver:
            self._driver.stop()
            self._driver = None

    def _stop(self) -> None:
        self.world.running -= 1
        self.stop()

    # -- mail ----------------------------------------------------------------------------------------------

    def heard(self, offer: Offer) -> None:
        if self._driver:
            self._driver.heard(offer)

    def overtaken(self, peer: PeerId, round: int | None) -> None:
        self.mailbox.overtaken(peer, round)
        if self._driver:
            self._driver.overtaken(peer)

    def lost_sight(self, peers: Collection[PeerId]) -> None:
        if self._driver:
            self._driver.gone(peers)

    # -- what things take ----------------------------------------------------------------------------------

    def seconds_of(self, seconds: float) -> float:
        """What this node needs for what takes others so long."""
        slowness = self.world.weather.slowness(self.id, self.world.clock.now)
        return self.world.costs.work(seconds, self._speed * slowness, self.chance)

    def seconds_to_score(self, samples: int) -> float:
        return self.seconds_of(self.world.costs.sample * samples)

    # -- what the policy tells -----------------------------------------------------------------------------

    def record(self, step: Record) -> None:
        self._told[step.event] = dict(step.data)
        self._write(step.event, **step.data)

    def gave_up(self, round: int, peers: Collection[PeerId], seconds: float) -> None:
        """A round went on without these, whose models had not come in time."""
        self._write("given_up", round=round, peers=list(peers), seconds=float(f"{seconds:.3f}"))

    def publish(self, step: Publish) -> None:
        self.window.show(step, self.learner.samples)

    def report(self, step: Report) -> float:
        """A round is done: publish, measure if due, keep the state. Returns the seconds that measuring takes."""
        settings = self.world.settings
        self.publish(Publish(step.model, step.round, step.tag, step.notes))
        self._told["round"] = dict(step.data)
        self._reports += 1
        due = (step.round + 1) % settings.eval.every == 0
        if due:
            self._measure(step.model)
        figures = {**self._figures(), "bytes_sent": self.traffic.bytes_sent} if due else {}
        self._write("round", **{**step.data, "round": step.round, **figures, **self.learner.account.facts()})
        self._catch_up(step.round)
        self.at_work = settings.rounds is None or self.policy.round + 1 < settings.rounds
        self._keep()
        self.world.reported()
        return self.world.costs.sample * sum(e.samples for e in self._measured.values()) if due else 0.0

    def hold(self) -> bool:
        """Is this where the segment ends? Then its state is whole, and it stays that way."""
        world, rounds = self.world, self.world.settings.rounds
        after = self.policy.round + 1
        if world.until is None or after < world.until or (rounds is not None and after >= rounds):
            return False
        self._hold()
        return True

    def rest(self) -> None:
        """Its rounds are done, before those of others perhaps."""
        self.at_work = False
        if self.world.until is not None and not self._held:
            self._hold()

    def _hold(self) -> None:
        self._held = True
        self._checkpoint = self.policy.snapshot()
        self.world.held += 1

    def _keep(self) -> None:
        self._unsaved += 1
        if self._unsaved >= self.world.settings.store.checkpoint_every:
            self._checkpoint = self.policy.snapshot()
            self._unsaved = 0

    def others(self) -> dict[PeerId, int]:
        """In which rounds those are that are believed alive."""
        return {p: self.world.nodes[p].policy.round for p in self.world.views.alive(self.id)}

    def _catch_up(self, round: int) -> None:
        """A node of a lockstep policy that fell behind goes on where the others are."""
        if not self.policy.lockstep:
            return
        if ahead := self.mailbox.left_behind(round, self.others()):
            self._write("catching_up", round=round, swarm=ahead)
            self.policy.round = ahead - 1
            self.mailbox.advance(ahead)

    def _measure(self, model: Model) -> None:
        for split in self.world.settings.eval.on:
            scores = self.learner.score([model], split=split, samples=None, own_sample_each=False, seed=0)
            self._measured[split] = scores[0]
        # the learner has just looked at the test data, and does not look again
        self._confusion = self.learner.confusion(model) if "test" in self._measured else None
        self._measured_model = model

    def _figures(self) -> dict[str, float]:
        return {
            f"{split}_{what}": getattr(score, what)
            for split, score in self._measured.items()
            for what in ("loss", "accuracy")
        }

    def _write(self, event: str, **data: Any) -> None:
        self.world.journal.write(self.world.clock.now, self.id, event, **data)

    def _guarded(self, event: str, data: Mapping[str, Any]) -> None:
        """What the guard did: a quarantine is an event, a model it kept out a message."""
        if event == "quarantined":
            self._write(event, **data)
        else:
            self.world.journal.message(self.world.clock.now, self.id, event, **data)

    def summary(self) -> NodeRecord:
        test = self._measured.get("test")
        neighbours = self._told.get("neighbours", {}).get("ids")
        return NodeRecord(
            id=self.id,
            cluster=self.learner.cluster,
            state=self.state,
            rounds=self._reports,
            accuracy=test.accuracy if test else None,
            loss=test.loss if test else None,
            models_sent=self.traffic.models_sent,
            models_received=self.traffic.models_received,
            bytes_sent=self.traffic.bytes_sent,
            bytes_received=self.traffic.bytes_received,
            neighbours=None if neighbours is None else tuple(neighbours),
            head=self._told.get("round", {}).get("head"),
            confusion=self._confusion,
            honest=not self.bad,
            quarantined=tuple(sorted(self.guard.ever)),
            kept_out=self.guard.refused.total(),
        )
