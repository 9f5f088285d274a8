"""The simulations with committed digests: every policy and every optional feature."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pfl_node.lab.resumption import segment_of
from pfl_node.lab.spec import load
from pfl_node.policies import POLICIES
from pfl_node.settings.load import load_settings
from pfl_node.sim.faults import node_ids, parse_faults
from pfl_node.sim.learner_port import Load
from pfl_node.sim.outcome import Summary
from pfl_node.sim.simulate import simulate
from pfl_node.testing.contract.small_config import small
from pfl_node.testing.contract.toy_learner import two_clusters

NODES, ROUNDS = 8, 6
TROUBLE = (
    *("loss:0.05", "delay:0.1@2-6", "slow:n000x4@1-5", "crash:n001@3", "restart:n001@9", "join:n002@4"),
    *("partition:n003,n004@5-12", "cut:n005>n006@3-8", "skew:n007x1.5@2-9"),
)


@dataclass(frozen=True)
class Run:
    """One simulation. With torch, results depend on the processor and the version of torch."""

    settings: dict[str, Any]
    nodes: int = NODES
    faults: tuple[str, ...] = ()
    segment: int | None = None
    torch: bool = False

    def __call__(self, out: Path) -> Summary:
        told = load_settings(overrides={"rounds": ROUNDS, "seed": 3, **self.settings})
        toys: Load | None = None if self.torch else two_clusters
        if self.segment:
            return simulate(told, nodes=self.nodes, segment=self.segment, out=out, load=toys)
        faults = parse_faults(self.faults, node_ids(self.nodes))
        return simulate(told, nodes=self.nodes, faults=faults, out=out, load=toys, level="messages")


@dataclass(frozen=True)
class Cell:
    """One cell of an experiment, as `pfl-node lab run` runs it."""

    experiment: str
    label: str
    sets: tuple[str, ...] = ()
    torch: bool = field(default=True, init=False)

    def __call__(self, out: Path) -> Summary:
        experiment = load(self.experiment, seeds=1, sets=self.sets)
        cell = next(cell for cell in experiment.cells if cell.run == self.label)
        return simulate(cell.settings, nodes=cell.nodes, segment=segment_of(cell), out=out)


def of(policy: str, **more: Any) -> dict[str, Any]:
    knobs = {f"policy.{name}": value for name, value in small(POLICIES[policy], real_time=True).items()}
    return {"policy.name": policy, **knobs, **{key.replace("__", "."): value for key, value in more.items()}}


def digits(policy: str, **more: Any) -> dict[str, Any]:
    return of(policy, task__name="digits", **more)


RUNS: dict[str, Callable[[Path], Summary]] = {
    **{policy: Run(of(policy)) for policy in POLICIES},
    **{f"{policy} faults": Run(of(policy), faults=TROUBLE) for policy in POLICIES},
    **{f"{policy} segments": Run(of(policy), segment=2) for policy in ("el", "fedavg", "facade", "gossip", "dac")},
    "el alone": Run(of("el"), nodes=1),
    "el two": Run(of("el"), nodes=2),
    "el own graph": Run(of("el", policy__graph="own")),
    "el quorum": Run(of("el", round__quorum=0.5), faults=("slow:n003x9",)),
    "el staleness": Run(of("el", round__staleness=0, round__patience=3.0), faults=("slow:n003x9", "loss:0.1")),
    "el median": Run(of("el", aggregate__rule="median")),
    "el krum": Run(of("el", aggregate__rule="krum", attack__kind=["sign_flip"], attack__share=0.25)),
    "el gate": Run(of("el", guard__gate=0.1, attack__kind=["noise"], attack__share=0.25)),
    "el outliers": Run(of("el", guard__outliers=6.0, guard__least=2, attack__kind=["scaled"], attack__share=0.25)),
    "el alie": Run(of("el", attack__kind=["alie"], attack__share=0.25, attack__collude=True)),
    "pens_pull lying_scores": Run(of("pens_pull", attack__kind=["lying_scores"], attack__share=0.25)),
    "gossip nan": Run(of("gossip", guard__quarantine=5.0, attack__kind=["nan"], attack__share=0.25)),
    "greedy oracle": Run(of("greedy", privacy__oracle=True)),
    "greedy not served": Run(of("greedy", serve__evaluate=False, serve__model=False)),
    "fedavg common": Run(of("fedavg", train__init="common")),
    "fedavg eval": Run(of("fedavg", eval__every=4)),
    "digits el": Run(digits("el", rounds=3), nodes=6, torch=True),
    "digits facade": Run(digits("facade", rounds=3), nodes=6, torch=True),
    "digits fedavg": Run(digits("fedavg", rounds=3), nodes=6, torch=True),
    "digits feded": Run(digits("feded", rounds=1, task__auxiliary=0.2, policy__epochs=2), nodes=3, torch=True),
    "digits pens": Run(digits("pens", rounds=3), nodes=6, torch=True),
    "digits labels": Run(
        digits("el", rounds=2, attack__kind=["label_flip"], attack__share=0.4), nodes=5, torch=True
    ),
    "digits dp": Run(digits("el", rounds=2, privacy__dp=True), nodes=2, torch=True),
    "lab EL": Cell("digits-clusters", "EL", ("rounds=8",)),
    "lab FACADE": Cell("digits-clusters", "FACADE", ("rounds=8",)),
}
