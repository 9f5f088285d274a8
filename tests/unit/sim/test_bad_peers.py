"""Malicious nodes in a simulation: what the guard rejects, whom it quarantines, and the cost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pfl_node.errors import ConfigError
from pfl_node.model import Entry, Layout, Model
from pfl_node.node.ports import Plan
from pfl_node.policies import POLICIES, configure, load_policy
from pfl_node.policies.base import Policy
from pfl_node.settings import Settings
from pfl_node.sim.event_journal import EventJournal
from pfl_node.sim.faults import Slow
from pfl_node.sim.learner_port import LearnerPort, Load
from pfl_node.sim.outcome import Outcome
from pfl_node.sim.simulate import simulate
from pfl_node.sim.simulation import Simulation
from pfl_node.steps import Average, Fetch, Linger, Peers, Publish, Report, Sleep, Train
from pfl_node.types import Eval, Part, PeerId
from tests.toy import ToyLearner
from tests.unit.sim.test_slow_peers import InStep
from tests.unit.sim.toy_swarms import EVEN, A, B, C, Ran, Together, ran

BAD = 4  # the last of five


def settings(kind: str = "", guard: dict[str, Any] | None = None, **more: Any) -> Settings:
    attack = {"kind": kind.split(",") if kind else [], "nodes": [BAD], **more.pop("attack", {})}
    return Settings.model_validate({"attack": attack, "guard": guard or {}, "rounds": 8, **more})


def together(folder: Path, told: Settings, policy: type[Policy] = Together) -> Ran:
    return ran(folder, policy, nodes=5, rounds=told.rounds, settings=told)


def same(index: int, node: PeerId) -> LearnerPort:
    """Every node's optimum is 1, so honest nodes end near it."""
    return ToyLearner(point=1.0)


def alike(folder: Path, told: Settings, policy: type[Policy] = Together, nodes: int = 5, load: Load = same) -> Ran:
    plan = Plan(policy, configure(policy, told.policy.options))
    with EventJournal(folder / "journal.jsonl") as journal:
        swarm = Simulation(told, plan, load, nodes=nodes, journal=journal, costs=EVEN)
        swarm.run()
    return Ran(swarm, (folder / "journal.jsonl").read_bytes())


def loss(run: Ran) -> float:
    """The highest loss of an honest node."""
    return max(n.loss for n in run.swarm.records() if n.honest and n.loss is not None)


def test_a_sender_of_nan_is_refused_counted_and_quarantined_and_nobody_waits_for_it(tmp_path: Path) -> None:
    run = together(tmp_path, settings("nan"))
    quarantined = run.of("quarantined", A)
    assert [q["peer"] for q in quarantined] == ["n004"]
    assert quarantined[0]["reason"] == "not_finite"
    refused = run.swarm.refused()
    assert refused["not_finite"] == 4 * 3  # the third is one too many
    assert refused["quarantined"] == 4 * 5
    assert run.node(A).summary().quarantined == ("n004",)
    assert run.seconds < 5.0  # a round of waiting for it would take 10
    assert not run.node(PeerId("n004")).summary().honest


def test_a_node_that_is_much_slower_than_all_others_puts_none_of_them_into_quarantine(tmp_path: Path) -> None:
    """Its peers are always too far ahead for it to accept their models, which is no offence."""
    run = ran(
        tmp_path, InStep, nodes=4, rounds=120, faults=[Slow(C, 40.0, at=3.0, until=1e9)], settings=Settings()
    )
    assert run.swarm.refused()["future_round"] > 50
    assert run.of("quarantined", C) == []


@pytest.mark.parametrize(
    ("attack", "guard"),
    [
        ("scaled", {"outliers": 6.0, "least": 2}),
        ("scaled", {"gate": 1.0, "blame": 1.0}),
        ("sign_flip", {"gate": 1.0, "blame": 1.0}),
        ("noise", {"outliers": 6.0, "least": 2}),
    ],
)
def test_the_guard_keeps_bad_models_out_of_the_mean(tmp_path: Path, attack: str, guard: dict[str, Any]) -> None:
    strength = {"strength": 30.0} if attack != "sign_flip" else {}
    bare = loss(alike(tmp_path, settings(attack, attack=strength)))
    run = alike(tmp_path, settings(attack, guard, attack=strength))
    assert loss(run) < 0.1 < bare
    assert run.node(A).summary().kept_out > 0
    sure = attack != "noise"  # with so few parameters, noise may pass
    assert {row["peer"] for row in run.of("quarantined")} == ({"n004"} if sure else set())


@pytest.mark.parametrize(
    ("policy", "compress"), [("choco", "none"), ("dac", "top:0.6"), ("dfca", "top:0.6"), ("fedfomo", "top:0.6")]
)
def test_a_partial_model_that_a_policy_completes_is_blamed_on_its_sender(
    tmp_path: Path, policy: str, compress: str
) -> None:
    guard = {"gate": 1.0, "blame": 1.0}
    told = settings("scaled", guard, attack={"strength": 30.0}, wire={"compress": compress}, rounds=12)
    run = alike(tmp_path, told, POLICIES[policy])
    assert {row["peer"] for row in run.of("quarantined")} == {"n004"}


def test_without_an_attack_the_guard_keeps_nobody_out_of_a_swarm_of_equals(tmp_path: Path) -> None:
    run = alike(tmp_path, settings(guard={"outliers": 6.0, "gate": 1.0}))
    assert not run.of("quarantined")
    assert run.swarm.refused() == {}


# -- two clusters ------------------------------------------------------------------------------------------------

NODES = 12
FULL = {"outliers": 6.0, "gate": 0.5}


class WideLearner(ToyLearner):
    """A toy with many parameters. Clusters end as far from the initial model as networks on digits do."""

    layout = Layout((Entry("core", (1000,)),), (Entry("head", (24,)),))

    def __init__(self, cluster: int) -> None:
        super().__init__(cluster=cluster)
        self.goal = self.fresh(0).vector + 0.7 * self.fresh(1000 + cluster).vector

    def fresh(self, seed: int, part: Part = "model", *, local: bool = False) -> Model:
        vector = np.random.default_rng(seed).normal(size=self.layout.size).astype(np.float32)
        return Model(self.layout, vector).of(part)

    def train(self, model: Model, *, seed: int, **_: Any) -> Model:
        chance = np.random.default_rng(seed).normal(size=self.layout.size)
        return Model(self.layout, ((model.vector + self.goal) / 2 + 0.05 * chance).astype(np.float32))

    def score(self, models: Sequence[Model], **_: Any) -> tuple[Eval, ...]:
        losses = [float(np.abs(m.vector - self.goal).mean()) for m in models]
        return tuple(Eval(loss=loss, accuracy=1 / (1 + loss), samples=self.samples) for loss in losses)


def clusters(folder: Path, few: int, kind: str = "", init: str = "common", **attack: Any) -> Ran:
    """The first nodes form the smaller cluster."""
    told = settings(
        kind,
        FULL,
        rounds=15,
        policy={"name": "el", "degree": 5},
        train={"init": init},
        attack={"nodes": [0, NODES - 1], **attack},
    )

    def load(index: int, node: PeerId) -> LearnerPort:
        return WideLearner(cluster=int(index >= few))

    return alike(folder, told, load_policy("el"), NODES, load)


@pytest.mark.parametrize("init", ["common", "independent"])
@pytest.mark.parametrize("few", [1, 2, 6])
def test_no_honest_node_is_quarantined_for_being_of_another_cluster(tmp_path: Path, few: int, init: str) -> None:
    run = clusters(tmp_path, few, init=init)
    assert sum(n.kept_out for n in run.swarm.records()) > 0  # their models are recognised nevertheless
    assert not run.of("quarantined")


def test_nor_where_models_are_so_small_that_clusters_are_each_others_opposite(tmp_path: Path) -> None:
    told = settings(guard=FULL, rounds=20)
    run = ran(tmp_path, Together, nodes=10, rounds=20, settings=told)
    assert sum(n.kept_out for n in run.swarm.records()) > 0
    assert not run.of("quarantined")


@pytest.mark.parametrize(
    ("kind", "strength"), [("sign_flip", 1.0), ("sign_flip", 0.5), ("scaled", 10.0), ("noise", 4.0)]
)
@pytest.mark.parametrize("few", [2, 6])
def test_of_two_clusters_only_those_who_attack_are_quarantined(
    tmp_path: Path, kind: str, strength: float, few: int
) -> None:
    run = clusters(tmp_path, few, kind, strength=strength)
    found = Outcome("el", "toy", 0, 1, run.swarm.records(), {}).detection
    assert found
    assert found.precision == 1.0
    assert found.recall is not None
    assert found.recall > 0.9
    assert not any(n.quarantined for n in run.swarm.records() if not n.honest)


@pytest.mark.parametrize("kind", ["alie", "free_rider", "replay"])
def test_where_nobody_can_tell_who_attacks_nobody_is_quarantined(tmp_path: Path, kind: str) -> None:
    assert not clusters(tmp_path, 6, kind).of("quarantined")


def test_after_its_quarantine_a_peer_gets_another_chance(tmp_path: Path) -> None:
    class Slow(Together):
        async def main(self) -> None:
            for t in self.remaining():
                await Sleep(10.0)
                self.model = await Train(self.model)
                await self.meet(t)

        async def meet(self, t: int) -> None:
            from pfl_node.steps import Gather, Send

            peers = await Peers()
            await Send(peers, self.model, round=t)
            offers = await Gather(peers, t)
            await Report(t, self.model, {"got": [o.sender for o in offers]})

    run = together(tmp_path, settings("nan", {"quarantine": 30.0}, rounds=12), Slow)
    times = [row["time"] for row in run.of("quarantined", A)]
    assert len(times) > 1
    assert times[1] - times[0] > 30.0


@pytest.mark.parametrize("kind", ["sign_flip", "alie", "nan", "free_rider", "replay", "noise,lying_scores"])
@pytest.mark.parametrize(
    "name", ["el", "facade", "pens", "pens_pull", "deprl", "dac", "fedavg", "mosaic", "choco"]
)
def test_every_attack_runs_with_every_kind_of_policy_and_is_the_same_twice(
    tmp_path: Path, kind: str, name: str
) -> None:
    assert name in POLICIES
    told = settings(kind, {"outliers": 6.0, "gate": 1.0}, policy={"name": name}, rounds=4)
    policy = load_policy(name)
    first = ran(tmp_path, policy, nodes=5, rounds=4, settings=told)
    assert {n.state for n in first.swarm.records()} == {"left"}
    assert ran(tmp_path, policy, nodes=5, rounds=4, settings=told).text == first.text


def test_a_run_in_segments_that_was_broken_off_ends_with_the_same_guard(tmp_path: Path) -> None:
    told = settings("replay", {"outliers": 6.0, "gate": 1.0}, policy={"name": "el"}, attack={"lag": 3})

    def go(out: Path) -> str:
        summary = simulate(told, nodes=5, segment=2, out=out, load=same)
        row = summary.as_dict()
        return json.dumps({k: v for k, v in row.items() if k not in ("wall_seconds", "cpu_seconds")})

    assert go(tmp_path / "a") == go(tmp_path / "b")


def test_the_summary_has_the_accuracy_of_the_honest_and_who_was_caught(tmp_path: Path) -> None:
    row = simulate(settings("nan", policy={"name": "el"}), nodes=5, load=same, out=tmp_path).as_dict()
    assert row["malicious"] == ["n004"]
    assert row["quarantine"] == {"precision": 1.0, "recall": 1.0}
    assert row["kept_out"] > 0
    honest = [n["accuracy"] for n in row["per_node"] if n["honest"]]
    assert row["accuracy"] == pytest.approx(sum(honest) / 4)


def test_a_place_that_is_not_there_cannot_be_bad(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no place 4 among 3 nodes"):
        ran(tmp_path, Together, nodes=3, settings=settings("nan"))


def test_a_node_that_is_done_does_not_stay_for_ever_for_one_that_gets_no_further(tmp_path: Path) -> None:
    class Stays(Policy):
        """The first node sleeps for a day; the others wait for it until their deadline."""

        async def main(self) -> None:
            await Publish(self.model, 0)
            for t in self.remaining():
                if self.me == A:
                    await Sleep(86_400.0)
                await Fetch(await Peers())
                self.model = await Average(self.model, [])
                await Report(t, self.model)
            await Linger()

    told = settings(round={"linger": 120.0}, rounds=1)
    run = ran(tmp_path, Stays, nodes=3, rounds=1, settings=told)
    ends = {row["node"]: row["time"] for row in run.of("finished")}
    assert 119 < ends[B] < 130
    assert 119 < ends[C] < 130
