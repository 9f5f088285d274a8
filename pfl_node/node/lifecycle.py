"""One node: wiring and lifecycle only. Network, members, disk and trainer are behind ports."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from pfl_node.errors import ConfigError, TaskError
from pfl_node.failpoints import afailpoint
from pfl_node.node.async_compressor import AsyncCompressor
from pfl_node.node.best_model import BEST
from pfl_node.node.catchup import CatchUp
from pfl_node.node.clock import WallClock, now
from pfl_node.node.context import Hold, NodeContext, WorkCount
from pfl_node.node.driver import Driver
from pfl_node.node.gather import ArrivalTimes
from pfl_node.node.host import Host
from pfl_node.node.local_state import StatefulTrainer
from pfl_node.node.lookahead import LOOKAHEAD, Lookahead
from pfl_node.node.notifier import Notifier
from pfl_node.node.peers import RunPeers
from pfl_node.node.ports import (
    HONEST,
    Job,
    LearnerFacts,
    Log,
    Members,
    Network,
    Observer,
    Plan,
    Role,
    Store,
    Trainer,
)
from pfl_node.node.recorder import LOCAL, SENT, Recorder, restore_checkpoint
from pfl_node.node.startup import entry_round, fresh_seed, make_policy
from pfl_node.node.task_reload import TaskReload
from pfl_node.plugin import users_fault
from pfl_node.policies.base import Policy
from pfl_node.protocol.deadlines import Deadlines
from pfl_node.protocol.guard.guard import Guard
from pfl_node.protocol.mailbox import Mailbox, limits_of
from pfl_node.protocol.privacy.pair_noise import SharedSecret, no_secret
from pfl_node.protocol.published import PublishedModels
from pfl_node.settings import Settings
from pfl_node.types import PeerId


class PolicyNode:
    """`await run()`, `await close()`; `stop()` shuts `run` down cleanly. Incoming calls go to `host`."""

    address = ""  # the address that peers dial
    state = "starting"
    policy: Policy | None = None
    driver: Driver | None = None
    recorder: Recorder | None = None
    reloads: TaskReload | None = None
    wall = WallClock()
    shared_secret: SharedSecret = staticmethod(no_secret)  # set where nodes have keys
    had_rounds = False  # whether any round was left when the policy started
    _resumes: Mapping[str, Any] | None = None  # state of the driver at the end of the previous segment
    _refusal: ConfigError | None = None

    def __init__(
        self,
        settings: Settings,
        plan: Plan,
        *,
        store: Store,
        network: Network,
        members: Members,
        trainer: Trainer,
        observer: Observer,
        log: Log,
        certain: bool,  # whether sender ids can be trusted
        role: Role = HONEST,
        hold: Hold | None = None,
        stops: bool = True,  # whether `stop` may be called
        observe: Callable[[str, Mapping[str, Any]], None] | None = None,  # called with every journal entry
    ) -> None:
        self.settings = settings
        self.plan = Plan(role.policy(plan.policy), plan.cfg)
        self.store = store
        self.network = network
        self.members = members
        self.trainer = StatefulTrainer(trainer)
        self.lookahead = Lookahead(settings.train.lookahead)
        self.observer = observer
        self.log = log
        self.role = role
        self.id = store.identity.id
        self.name = settings.name or f"node-{self.id[:6]}"
        self.started = now()
        self.work = WorkCount()
        self._observe = observe
        self._hold, self._stops = hold, stops
        self._notifier = Notifier()
        self._stop = asyncio.Event()
        late = settings.round.staleness if plan.policy.late else 0
        self.mailbox = Mailbox(limits_of(settings.serve, late), plan.policy.takes, plan.policy.vectors)
        self.deadlines = Deadlines(settings.round)
        self.mailbox.observer = ArrivalTimes(self.deadlines)
        self.guard = Guard(role.guard(settings.guard), certain=certain, tell=observer.guarded)
        self.privacy = store.privacy(settings, certain=certain)
        self.host = self._make_host()
        self.peers = RunPeers(members, settings.rounds)
        self._catch_up = CatchUp(self.mailbox, self.peers.rounds, lambda: members.pauses)
        members.listener = self

    def _make_host(self) -> Host:
        settings = self.settings
        return Host(
            self.id,
            settings.run,
            settings.serve,
            self.mailbox,
            self._notifier,
            window=PublishedModels(self.id, settings.serve, self.plan.policy.serves),
            guard=self.guard,
            mine=lambda: self.policy.model if self.policy else None,
            oracle=self.privacy.oracle,
            role=self.role,
            scores=self._scores_for_peers(),
            compressor=AsyncCompressor(settings.wire.compress, self.id),
        )

    def _scores_for_peers(self) -> bool:
        """An exact score of the training data is not covered by the epsilon of DP-SGD."""
        exact = self.settings.privacy.dp and not self.settings.privacy.oracle
        return self.plan.policy.scores_for_peers(self.plan.cfg) and not exact

    # -- lifecycle -----------------------------------------------------------------------------------------

    async def run(self) -> str:
        """Load, join, learn, leave. Returns "done", or "stopped" after `stop()`."""
        how = "failed"
        try:
            how = await self._until_stopped(self._learn())
            if self._refusal:
                raise self._refusal
        except Exception as error:
            if fault := users_fault("task", self.settings.task.name, error, TaskError):
                raise fault from error
            raise
        finally:
            await self._finish(how)
        return how

    def stop(self) -> None:
        """Make `run` finish the messages in progress, write the state and leave the swarm."""
        self._stop.set()

    async def close(self) -> None:
        """Release the resources of the ports, however far the node got."""
        await self.members.close()
        await self.network.close()
        self.store.close()

    # -- phases of a run -----------------------------------------------------------------------------------

    async def _until_stopped(self, work: Coroutine[Any, Any, None]) -> str:
        task, stop = asyncio.create_task(work), asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                return "stopped"
            task.result()
            return "done"
        finally:
            task.cancel()
            stop.cancel()
            await asyncio.gather(task, stop, return_exceptions=True)

    async def _learn(self) -> None:
        learner = await self.trainer.open(self.privacy.account)
        self.policy = policy = await self._make_policy(learner)
        kept = self._restore(policy, learner)
        self.recorder = self._make_recorder(policy, learner)
        self.recorder.best.load(kept.get(BEST))
        self.mailbox.advance(policy.round)
        self.host.open(learner, self.trainer)
        await self.network.serving(True)
        await self._join(policy)
        self.state = "training"
        self.observer.begins(policy, learner, self.recorder)
        context = NodeContext(
            settings=self.settings,
            learner=learner,
            trainer=self.trainer,
            network=self.network,
            mailbox=self.mailbox,
            deadlines=self.deadlines,
            notifier=self._notifier,
            peers=self.peers,
            recorder=self.recorder,
            work=self.work,
            guard=self.guard,
            compressor=self.host.compressor,
            wall=self.wall,
            hold=self._hold,
            lookahead=self.lookahead,
            shared_secret=self.shared_secret,
        )
        self.reloads = TaskReload(
            self.settings.task.name,
            self.trainer,
            policy,
            learner,
            self.recorder,
            observer=self.observer,
            log=self.log,
        )
        self.driver = Driver(policy, context)
        if self._resumes:
            self.driver.load(self._resumes)
        self.had_rounds = policy.more
        await self._with_refresh(self.driver.run())

    def _make_recorder(self, policy: Policy, learner: LearnerFacts) -> Recorder:
        return Recorder(
            self.settings,
            self.store,
            policy,
            learner,
            self.trainer,
            work=self.work,
            log=self.log,
            publish=self.host.publish,
            ended=self._ended,
            observe=self._observe,
            tell=self.observer.tell,
            stops=self._stops,
            local=lambda: self.trainer.state,
            lookahead=self.lookahead,
            sent=self.host.compressor.snapshot,
        )

    async def _with_refresh(self, work: Coroutine[Any, Any, None]) -> None:
        """Call the task again every `task.refresh` seconds while the policy runs."""
        if self.settings.task.refresh is None or self.reloads is None:
            return await work
        refresh = asyncio.create_task(self.reloads.every(self.settings.task.refresh))
        try:
            await work
        finally:
            refresh.cancel()
            await asyncio.gather(refresh, return_exceptions=True)

    async def reload(self) -> dict[str, int]:
        """Call the task again; returns the number of samples by split. Raises TaskError and keeps the old data."""
        if self.reloads is None:
            raise TaskError("the node has not started to learn: try again when `pfl-node status` says training")
        return await self.reloads.now()

    async def _make_policy(self, learner: LearnerFacts) -> Policy:
        """Create the policy with its initial model, and the local state."""
        seed = fresh_seed(self.settings, self.id, 0)
        model = await self.trainer.soon(Job("fresh", options={"seed": seed}))
        await self.trainer.start(learner, seed)
        self.host.compressor.begin(model)
        return make_policy(self.plan, self.settings, self.id, learner, model)

    def _restore(self, policy: Policy, learner: LearnerFacts) -> Mapping[str, Any]:
        """Continue from the checkpoint if there is one; returns its content."""
        kept = restore_checkpoint(
            policy, self.settings, self.store, learner.layout, warn=self.observer.warn, log=self.log
        )
        self.trainer.restore(kept.get(LOCAL))
        self.lookahead.load(kept.get(LOOKAHEAD))
        self.host.compressor.restore(kept.get(SENT))
        if policy.takes == ("core",) and not learner.layout.core.size:
            self.observer.warn(
                f"policy {self.settings.policy.name} exchanges cores, but all parameters that are trained and "
                "sent are in the head, so nothing is exchanged; name a smaller `head` in the task"
            )
        return kept

    async def _join(self, policy: Policy) -> None:
        """Become a member, wait for peers, and ask for the swarm's round."""
        self.state = "joining"
        self.peers.announce_round(policy.round)
        await afailpoint("join")
        await self.members.start(self.address)
        if not self.members.joined:
            self.observer.warn("no seed has answered yet; trying again", seeds=list(self.settings.peer_seed))
        start = self.settings.start
        if not policy.more or policy.solitary:
            start = start.model_copy(update={"peers": 0, "calm": 0})
        await self.peers.gather(start, self._notifier)
        if self.peers.seen() < start.peers:
            others = len(self.peers())
            goes_on = others or self.settings.round.alone != "wait"
            then = "continuing, others may still join" if goes_on else "waiting for one (round.alone)"
            self.observer.warn(f"{others} other nodes after {start.wait:g} s; {then}")
        policy.round = entry_round(policy, await self.peers.swarm_round())
        self.mailbox.advance(policy.round)
        self.peers.announce_start(policy.round)

    def _ended(self, round: int) -> int | None:
        """Called after a round. Returns the swarm's round if the swarm moved on without this node."""
        assert self.policy is not None
        ahead = self._catch_up.after(round, self.policy)
        self.peers.announce_round(self.policy.round + 1)
        return ahead

    async def _finish(self, how: str) -> None:
        self.state = "done" if how == "done" else "leaving"
        self.host.close()
        await self.network.serving(False)
        try:
            if self.recorder:
                if how == "done":
                    self._return_to_best(self.recorder)
                await self.recorder.finish(how)
                self.recorder.close()
        finally:
            if how == "done" and not self._leaves_early:
                self.peers.announce_finished()
            if not await afailpoint("leave"):
                await self.members.leave()

    def _return_to_best(self, recorder: Recorder) -> None:
        """With `train.patience`, the best model is the final one."""
        if self.policy and (best := recorder.best.final) and best.model:
            self.policy.model = best.model
            self.trainer.restore(best.state)

    @property
    def _leaves_early(self) -> bool:
        """In lockstep, peers would expect models from a node that lingers, and use its last round as the
        swarm's."""
        return self.policy is not None and self.policy.lockstep and self.policy.stops_after is not None

    # -- segments of a simulation --------------------------------------------------------------------------

    def dump(self) -> dict[str, Any]:
        """The state at a Report, for the next segment, without the policy, whose snapshot is a checkpoint."""
        assert self.driver is not None
        return {
            "mailbox": self.mailbox.dump(),
            "window": self.host.window.dump(),
            "patience": self.deadlines.dump(),
            "guard": self.guard.dump(),
            "compressor": self.host.compressor.dump(),
            "driver": self.driver.dump(),
        }

    def load(self, row: Mapping[str, Any]) -> None:
        """Call before `run`."""
        self.mailbox.load(row["mailbox"])
        self.host.window.load(row["window"])
        self.deadlines.load(row["patience"])
        self.guard.load(row["guard"])
        self.host.compressor.load(row["compressor"])
        self._resumes = row["driver"]

    # -- MembersListener -----------------------------------------------------------------------------------

    def changed(self) -> None:
        self._notifier.notify("members")

    def gone(self, peer: PeerId) -> None:
        self.network.forget(peer)
        self._notifier.notify("members")

    def refused(self, reason: str) -> None:
        self._refusal = ConfigError(reason)
        self.stop()
