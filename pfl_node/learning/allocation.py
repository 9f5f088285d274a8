"""Who gets which images of a data set: a cluster's part, a node's share of it, what is for validation, what is set
aside for all. Knows numbers of images, not images."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np

from pfl_node.errors import ConfigError
from pfl_node.learning import option_types, partition
from pfl_node.learning.datasets import Dataset
from pfl_node.learning.partition import Indices

DRAWN = 500  # training images of a node that has only its id, unless it says how many
VAL_SHARE = 10  # without a word about validation, one image of so many is for it
TEST_SEED = 0  # which test images a cluster has is the same in every run, so that runs compare

Tests = int | Literal["part", "all"]


class Share(NamedTuple):
    """One node's images, as numbers in the training set; val is None where all of them are for training."""

    cluster: int
    train: Indices
    val: Indices | None


@dataclass(frozen=True)
class AllocationPlan:
    """How a training set is given out: the same at every node of a run."""

    counts: tuple[int, ...]  # nodes of each cluster; weights where the places are unknown
    seed: int
    partition: str = "iid"
    alpha: float | None = None
    samples: int | None = None  # for training; None: all
    val: int | None = None  # for validation; None: a tenth; 0: none of their own
    aside: int = 0  # images that no node trains on

    def __post_init__(self) -> None:
        if self.partition in SKEWED and self.alpha is None:
            raise ConfigError(f"task.partition = {self.partition!r} needs task.alpha, how unequal the nodes are")
        if self.partition not in SKEWED and self.alpha is not None:
            raise ConfigError(f"task.alpha is for task.partition = {' or '.join(SKEWED)}, not {self.partition}")
        if self.partition != "iid" and self.samples is not None:
            raise ConfigError(f"task.partition = {self.partition!r} gives out all images: leave out task.samples")

    @property
    def held(self) -> int:
        """For validation, where `samples` says how many are for training."""
        return max(1, (self.samples or 0) // VAL_SHARE) if self.val is None else self.val


Split = Callable[[Indices, int, AllocationPlan, int], list[Indices]]  # of (labels, nodes, plan, cluster)

PARTITIONS: dict[str, Split] = {
    "iid": lambda y, nodes, plan, c: partition.iid(y, nodes, (plan.seed, c)),
    "shards": lambda y, nodes, plan, c: partition.shards(y, nodes, (plan.seed, c)),
    "dirichlet": lambda y, nodes, plan, c: partition.dirichlet(y, nodes, plan.alpha or 0, (plan.seed, c)),
    "quantity": lambda y, nodes, plan, c: partition.quantity(y, nodes, plan.alpha or 0, (plan.seed, c)),
}
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
    """The plan that a user wrote down."""
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
    """How many the data is for; None: nobody knows."""
    if option_types.whole("pooled", pooled) > 1 and (index is None or nodes is None):
        raise ConfigError(
            f"task.pooled = {pooled} puts the images of so many places together: say which ones these are, "
            "task.index, and how many nodes there are, task.nodes"
        )
    return None if index is None or nodes is None else nodes * int(pooled)


def of_place(
    data: Dataset, plan: AllocationPlan, index: int | None, nodes: int | None, node_id: str, pooled: int = 1
) -> list[Share]:
    """What a node has: one share, or those of `pooled` places of a larger swarm."""
    if index is None or nodes is None:
        return [drawn(data, plan, node_id, nodes, index)]
    return [indexed(data, plan, place) for place in range(index * pooled, (index + 1) * pooled)]


def indexed(data: Dataset, plan: AllocationPlan, index: int) -> Share:
    """The share of place `index`. No image is at two places."""
    cluster, place = seat(plan.counts, index)
    shares = _shares(data, plan, cluster)
    if plan.samples is not None and plan.samples + plan.held > (least := min(map(len, shares))):
        raise ConfigError(
            f"task.samples = {plan.samples} and task.val = {plan.held}: each of the cluster's {len(shares)} nodes "
            f"can have only {least} images of {data.name} in all"
        )
    return _held_out(data, plan, cluster, shares[place])


def drawn(data: Dataset, plan: AllocationPlan, node_id: str, nodes: int | None, index: int | None = None) -> Share:
    """The share of a node that has only its id: its images are drawn with it, and others may have some of them,
    too. So is its cluster, unless it has a place among nobody knows how many: clusters have those in turn."""
    if plan.partition != "iid":
        raise ConfigError(
            f"task.partition = {plan.partition!r} is for all places at once: say which one this is, "
            "task.index, and how many there are, task.nodes"
        )
    chance = np.random.default_rng((plan.seed, number(node_id, 0)))
    cluster = int(chance.choice(len(plan.counts), p=np.array(plan.counts) / sum(plan.counts)))
    cluster = cluster if index is None else partition.in_turn(index, plan.counts)
    pool = pools(data, plan)[cluster]
    if plan.samples is None:
        n = max(1, min(DRAWN, len(pool), len(data.train.y) // (nodes or 1)))
    else:
        n = plan.samples + plan.held
    if n > len(pool):
        raise ConfigError(
            f"task.samples = {plan.samples} and task.val = {plan.held}: "
            f"the cluster has only {len(pool)} images of {data.name} in all"
        )
    return _held_out(data, plan, cluster, chance.choice(pool, n, replace=False))


def _held_out(data: Dataset, plan: AllocationPlan, cluster: int, mine: Indices) -> Share:
    """Train and val of a node's images."""
    if plan.samples is not None:
        held, mine = plan.held, mine[: plan.held + plan.samples]
    elif plan.val is None:
        held = len(mine) // VAL_SHARE
    elif plan.partition in SKEWED:
        held = min(plan.val, len(mine) // 2)  # some nodes have hardly any
    else:
        held = plan.val
    if held >= len(mine):
        raise ConfigError(f"task.val = {held}, but a node has only {len(mine)} images of {data.name} in all")
    return Share(cluster, mine[held:], mine[:held] if held else None)


@lru_cache(maxsize=16)
def _shares(data: Dataset, plan: AllocationPlan, cluster: int) -> list[Indices]:
    """Of all nodes of a cluster."""
    pool = pools(data, plan)[cluster]
    split = PARTITIONS[plan.partition](data.train.y[pool], plan.counts[cluster], plan, cluster)
    return [pool[part] for part in split]


@lru_cache(maxsize=4)
def pools(data: Dataset, plan: AllocationPlan) -> list[Indices]:
    """The training images of each cluster: as large a part as it has nodes."""
    kept = _order(data, plan)[: len(data.train.y) - plan.aside]
    return [kept[part] for part in partition.clusters(len(kept), plan.counts, plan.seed)]


def set_aside(data: Dataset, plan: AllocationPlan) -> Indices:
    """The images that no node trains on, in an order that is the same at all of them."""
    return _order(data, plan)[len(data.train.y) - plan.aside :]


def _order(data: Dataset, plan: AllocationPlan) -> Indices:
    return np.random.default_rng((plan.seed, len(data.train.y))).permutation(len(data.train.y))


def for_testing(data: Dataset, clusters: int, cluster: int, wanted: Tests) -> Indices:
    """The test images of a cluster: its part of them, so many of that part, or simply all."""
    n = len(data.test.y)
    if wanted == "all":
        return np.arange(n)
    part = np.array_split(np.random.default_rng(TEST_SEED).permutation(n), clusters)[cluster]
    if wanted != "part" and wanted > len(part):
        raise ConfigError(f"task.tests = {wanted}, but each of {clusters} clusters has {len(part)} test images")
    return np.sort(part if wanted == "part" else part[:wanted])


def seat(counts: tuple[int, ...], index: int) -> tuple[int, int]:
    """The cluster of a place, and its number there; the first places are the first cluster."""
    for cluster, size in enumerate(counts):
        if index < size:
            return cluster, index
        index -= size
    raise ConfigError(f"there are {sum(counts)} places, and this is number {index + sum(counts)}")


def number(node_id: str, which: int) -> int:
    """One of the numbers that an id stands for."""
    return int.from_bytes(hashlib.sha256(node_id.encode()).digest()[8 * which : 8 * which + 8])
