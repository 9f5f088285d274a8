"""Decides which samples a node gets: its cluster's pool, its share of that, and the validation samples in its
share.

Works on indices and labels of samples, not on the samples.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np

from pfl_node.errors import ConfigError
from pfl_node.learning import option_types, partition
from pfl_node.learning.datasets import Dataset
from pfl_node.learning.partition import Indices
from pfl_node.learning.readers import Labels

DRAWN = 500  # images of a node without an index, unless task.samples is set
VAL_PART = 10  # by default every tenth sample is for validation
TEST_SEED = 0  # the test images of a cluster are the same in every run, so that runs can be compared

Tests = int | Literal["part", "all"]


class Share(NamedTuple):
    """The indices of one node's samples; val is None if all of them are for training."""

    cluster: int
    train: Indices
    val: Indices | None


@dataclass(frozen=True)
class AllocationPlan:
    """How a training set is divided: the same at every node of a run."""

    counts: tuple[int, ...]  # nodes of each cluster; weights if the number of places is unknown
    seed: int
    partition: str = "iid"
    alpha: float | None = None
    samples: int | None = None  # number of training samples; None: all
    val: int | None = None  # number of validation samples; None: one in val_part; 0: none
    aside: int = 0  # samples that no node trains on
    val_part: int = VAL_PART
    val_last: bool = False  # a node's validation samples come after its training samples, not before
    overlap: bool = False  # each place draws its samples from the pool, so that two places may share some

    def __post_init__(self) -> None:
        if self.partition in SKEWED and self.alpha is None:
            raise ConfigError(f"task.partition = {self.partition!r} needs task.alpha, the concentration")
        if self.partition not in SKEWED and self.alpha is not None:
            raise ConfigError(f"task.alpha is for task.partition = {' or '.join(SKEWED)}, not {self.partition}")
        if self.complete and self.samples is not None:
            raise ConfigError(f"the {self.partition} partition allocates all images: leave out task.samples")

    @property
    def complete(self) -> bool:
        """All samples are allocated, and the shares of all places are computed together."""
        return self.partition not in ("iid", "in_order")

    @property
    def held(self) -> int:
        """Validation samples of a node, if `samples` says how many it has for training."""
        return max(1, (self.samples or 0) // self.val_part) if self.val is None else self.val

    @property
    def wanted(self) -> str:
        return f"task.samples = {self.samples} and task.val = {self.held}"


Split = Callable[[Labels, int, AllocationPlan, int], list[Indices]]  # called with (labels, nodes, plan, cluster)

PARTITIONS: dict[str, Split] = {
    "iid": lambda y, nodes, plan, c: partition.iid(y, nodes, (plan.seed, c)),
    "shards": lambda y, nodes, plan, c: partition.shards(y, nodes, (plan.seed, c)),
    "paired_shards": lambda y, nodes, plan, c: partition.paired_shards(y, nodes, (plan.seed, c)),
    "dirichlet": lambda y, nodes, plan, c: partition.dirichlet(y, nodes, plan.alpha or 0, (plan.seed, c)),
    "quantity": lambda y, nodes, plan, c: partition.quantity(y, nodes, plan.alpha or 0, (plan.seed, c)),
}
IN_ORDER: dict[str, Split] = {"in_order": lambda y, nodes, _, __: partition.in_order(len(y), nodes)}
SKEWED = ("dirichlet", "quantity")


def planned(
    data: Dataset,
    counts: tuple[int, ...],
    seed: int,
    *,
    partition: Any = "iid",
    alpha: Any = None,
    samples: Any = None,
    val: Any = None,
    auxiliary: Any = 0,
) -> AllocationPlan:
    """The plan that the task's options describe."""
    return AllocationPlan(
        counts=counts,
        seed=seed,
        partition=option_types.word("partition", partition, PARTITIONS),
        alpha=None if alpha is None else option_types.positive("alpha", alpha),
        samples=None if samples is None else option_types.whole("samples", samples),
        val=None if val is None else option_types.whole("val", val, least=0),
        aside=option_types.amount("auxiliary", auxiliary, of=len(data.train.y)),
    )


def places(index: int | None, nodes: int | None, pooled: Any = 1) -> int | None:
    """The number of places among which the data is divided; None: unknown."""
    if option_types.whole("pooled", pooled) > 1 and (index is None or nodes is None):
        raise ConfigError(
            f"task.pooled = {pooled} joins the images of {pooled} places: say which ones these are, task.index, "
            "and how many nodes there are, task.nodes"
        )
    return None if index is None or nodes is None else nodes * int(pooled)


class Allocator:
    """Divides the pool of each cluster among the places of the cluster."""

    def __init__(self, name: str, labels: Labels, pools: Sequence[Indices], plan: AllocationPlan) -> None:
        self.pools = pools  # the training samples of each cluster
        self._name, self._labels, self._plan = name, labels, plan
        self._shares: dict[int, list[Indices]] = {}

    def of_place(self, index: int | None, nodes: int | None, node_id: str, pooled: int = 1) -> list[Share]:
        """The share of a node, or those of `pooled` places of a larger swarm."""
        if index is None or nodes is None:
            return [self.drawn(node_id, nodes, index)]
        return [self.indexed(place) for place in range(index * pooled, (index + 1) * pooled)]

    def indexed(self, index: int) -> Share:
        """The share of place `index`. No sample is at two places, unless the plan lets shares overlap."""
        plan = self._plan
        cluster, place = seat(plan.counts, index)
        if plan.overlap:
            return self._held_out(cluster, self._draw(cluster, None, np.random.default_rng((plan.seed, index))))
        shares = self._shares_of(cluster)
        if plan.samples is not None and plan.samples + plan.held > (least := min(map(len, shares))):
            raise ConfigError(
                f"{plan.wanted}: each of the cluster's {len(shares)} nodes can have only {least} images of "
                f"{self._name} in all"
            )
        return self._held_out(cluster, shares[place])

    def drawn(self, node_id: str, nodes: int | None, index: int | None = None) -> Share:
        """The share of a node without an index: its id determines its samples and its cluster, and other nodes may
        have some of the same samples. Without `nodes`, places with an index take the clusters in turn."""
        plan = self._plan
        if plan.complete:
            raise ConfigError(
                f"the {plan.partition} partition is computed for all nodes together: say which place this is, "
                "task.index, and how many there are, task.nodes"
            )
        chance = np.random.default_rng((plan.seed, number(node_id, 0)))
        cluster = int(chance.choice(len(plan.counts), p=np.array(plan.counts) / sum(plan.counts)))
        cluster = cluster if index is None else partition.in_turn(index, plan.counts)
        return self._held_out(cluster, self._draw(cluster, nodes, chance))

    def _draw(self, cluster: int, nodes: int | None, chance: np.random.Generator) -> Indices:
        plan, pool = self._plan, self.pools[cluster]
        if plan.samples is None:
            n = max(1, min(DRAWN, len(pool), len(self._labels) // (nodes or 1)))
        else:
            n = plan.samples + plan.held
        if n > len(pool):
            raise ConfigError(f"{plan.wanted}: the cluster has only {len(pool)} images of {self._name} in all")
        return chance.choice(pool, n, replace=False)

    def _held_out(self, cluster: int, mine: Indices) -> Share:
        """Split a node's samples into train and val."""
        plan = self._plan
        if plan.samples is not None:
            held, mine = plan.held, mine[: plan.held + plan.samples]
        elif plan.val is None:
            held = len(mine) // plan.val_part
        elif plan.partition in SKEWED:
            held = min(plan.val, len(mine) // 2)  # some nodes have very few samples
        else:
            held = plan.val
        if held >= len(mine):
            raise ConfigError(f"task.val = {held}, but a node has only {len(mine)} images of {self._name} in all")
        val, train = np.split(mine, [held])
        if plan.val_last:
            train, val = np.split(mine, [len(mine) - held])
        return Share(cluster, train, val if held else None)

    def _shares_of(self, cluster: int) -> list[Indices]:
        if cluster not in self._shares:
            pool, split = self.pools[cluster], (PARTITIONS | IN_ORDER)[self._plan.partition]
            parts = split(self._labels[pool], self._plan.counts[cluster], self._plan, cluster)
            self._shares[cluster] = [pool[part] for part in parts]
        return self._shares[cluster]


@lru_cache(maxsize=4)
def allocator_of(data: Dataset, plan: AllocationPlan) -> Allocator:
    """The pool of a cluster has a share of the training images in proportion to the cluster's number of nodes."""
    kept = _order(data, plan)[: len(data.train.y) - plan.aside]
    pools = [kept[part] for part in partition.clusters(len(kept), plan.counts, plan.seed)]
    return Allocator(data.name, data.train.y, pools, plan)


def set_aside(data: Dataset, plan: AllocationPlan) -> Indices:
    """The images that no node trains on, in the same order at all nodes."""
    return _order(data, plan)[len(data.train.y) - plan.aside :]


def _order(data: Dataset, plan: AllocationPlan) -> Indices:
    return np.random.default_rng((plan.seed, len(data.train.y))).permutation(len(data.train.y))


def for_testing(data: Dataset, clusters: int, cluster: int, wanted: Tests) -> Indices:
    """The test images of a cluster: its part of them, `wanted` images of that part, or all test images."""
    n = len(data.test.y)
    if wanted == "all":
        return np.arange(n)
    part = np.array_split(np.random.default_rng(TEST_SEED).permutation(n), clusters)[cluster]
    if wanted != "part" and wanted > len(part):
        raise ConfigError(f"task.tests = {wanted}, but each of {clusters} clusters has {len(part)} test images")
    return np.sort(part if wanted == "part" else part[:wanted])


def seat(counts: tuple[int, ...], index: int) -> tuple[int, int]:
    """The cluster of a place and its position there; the first places are the first cluster."""
    for cluster, size in enumerate(counts):
        if index < size:
            return cluster, index
        index -= size
    raise ConfigError(f"there are {sum(counts)} places, and this is number {index + sum(counts)}")


def number(node_id: str, which: int) -> int:
    """One of four numbers derived from an id."""
    return int.from_bytes(hashlib.sha256(node_id.encode()).digest()[8 * which : 8 * which + 8])
