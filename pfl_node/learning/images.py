"""The image classification tasks of the papers, with clusters of nodes that see rotated images.

There is one cluster for each of `angles` (degrees, counter-clockwise); `sizes` are their numbers of nodes (None:
as equal as possible), and the first nodes are the first cluster. The training images are divided among the
clusters in proportion to their sizes, and within each by `partition`: iid, shards (two per node, drawn),
paired_shards (two per node, of classes i and i + 5 of ten), dirichlet or quantity (both with `alpha`). No two
nodes have the same image. Without an index, the node's id decides its cluster and images (which may overlap); with
an index but without `nodes`, the id decides the images, and the places take the clusters in turn.

`samples` are for training and `val` more for validation; None: all, and a tenth of them (val = 0: validate on 200
of the training images). `tests` are the cluster's part of the test images, a number of them, or all, rotated like
the cluster; of these all (`test_mix` = uniform), or as many as have the class proportions of the node's training
images (own). `auxiliary` is the share or number of training images that is set aside: the same at all nodes,
unlabelled, rotated by each angle in turn; `auxiliary_samples` are used (None: all). Of several models, place i
uses number i modulo their count; without an index the node's id decides.

With `pooled`, every node has the data of that many nodes of a larger swarm: one node with pooled = 100 learns
centrally from the data of 100 nodes. All other options are those of the larger swarm; a node with data of several
clusters is tested on each and belongs to none.

Imports torch only when a task is built.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from pfl_node.errors import ConfigError
from pfl_node.learning import allocation, models, option_types
from pfl_node.learning.allocation import AllocationPlan, Share, Tests
from pfl_node.learning.datasets import Dataset, Images, load
from pfl_node.learning.partition import MIXES, Indices, same_mix
from pfl_node.learning.rotation import turned
from pfl_node.learning.task import Data, Task

SCALED = (np.arange(256, dtype=np.float32) / np.float32(255) - np.float32(0.5)) / np.float32(0.5)
PEEK = 200  # training images used for validation if a node has no validation images
TUNED = {("imagenette", "facade_lenet"): {"lr": 3e-4}}  # other training options of a paper


def images(
    index: int | None,
    nodes: int | None,
    seed: int,
    node_id: str,
    dataset: str = "image_folder",
    root: str | None = None,
    download: bool = False,
    size: int | None = None,
    model: str | Sequence[str] = "facade_lenet",
    angles: Sequence[float] = (0,),
    sizes: Sequence[int] | None = None,
    partition: str = "iid",
    alpha: float | None = None,
    samples: int | None = None,
    val: int | None = None,
    tests: int | str = "part",
    test_mix: str = "uniform",
    auxiliary: float = 0,
    auxiliary_samples: int | None = None,
    pooled: int = 1,
) -> Task:
    """Image classification; the module's docstring explains the options."""
    data, turns = load(dataset, root, size=size, download=download), option_types.angles(angles)
    counts = option_types.counts(len(turns), sizes, allocation.places(index, nodes, pooled))
    plan = allocation.planned(
        data, counts, seed, partition=partition, alpha=alpha, samples=samples, val=val, auxiliary=auxiliary
    )
    network, tuned = _network(data, model, allocation.number(node_id, 1) if index is None else index)
    mine = allocation.allocator_of(data, plan).of_place(index, nodes, node_id, pooled)
    return Task(
        name=dataset,
        model=lambda: network.build(data.classes, data.channels, data.size),
        **_own(data, turns, mine, _tests(tests), option_types.word("test_mix", test_mix, MIXES)),
        head=network.head,
        train_defaults={**network.train, **tuned},
        **_auxiliary(data, plan, turns, _used(plan, auxiliary_samples)),
        networks=models.networks(data.classes, data.channels, data.size),
        autoencoder=models.autoencoder(data.channels, data.size),
    )


def preset(dataset: str, **defaults: Any) -> Callable[..., Task]:
    """`images` with one data set and the options of its paper."""
    return partial(images, dataset=dataset, **defaults)


cifar10 = preset("cifar10", model="facade_lenet", angles=(0, 180), val=0)
imagenette = preset("imagenette", model="facade_lenet", angles=(0, 180), val=0)
fashion_mnist = preset("fashion_mnist", model="pens_cnn", angles=(0, 180), samples=500, val=100)
mnist = preset("mnist", model="mnist_2nn", val=0)
emnist = preset("emnist", model="cnn1", partition="dirichlet", alpha=1.0, val=0, auxiliary=0.5)


def _network(data: Dataset, model: Any, number: int) -> tuple[models.NetworkSpec, Mapping[str, Any]]:
    """The model for this place and its training options; all named models must support the images."""
    names = option_types.several("model", model)
    found = [(name, models.network(name, data.size)) for name in names]
    name, network = found[number % len(found)]
    return network, TUNED.get((data.name, name), {})


def _tests(wanted: Any) -> Tests:
    if wanted == "part" or wanted == "all":
        return wanted  # type: ignore[no-any-return]
    if isinstance(wanted, bool) or not isinstance(wanted, int) or wanted < 1:
        raise ConfigError(f"task.tests = {wanted!r} is neither 'part' nor 'all' nor a positive number of images")
    return wanted


def _used(plan: AllocationPlan, wanted: Any) -> int:
    """The number of used images among those that are set aside."""
    if wanted is None:
        return plan.aside
    if option_types.whole("auxiliary_samples", wanted) > plan.aside:
        raise ConfigError(f"task.auxiliary_samples = {wanted}, but only {plan.aside} images are set aside")
    return int(wanted)


def _own(data: Dataset, turns: tuple[float, ...], mine: Sequence[Share], tests: Tests, mix: str) -> dict[str, Any]:
    """The node-specific parts of a task, from the share of one or several places."""
    train = [_data(data.train, share.train, turns[share.cluster]) for share in mine]
    val = [_data(data.train, share.val, turns[share.cluster]) for share in mine if share.val is not None]
    peek = -(-PEEK // len(mine))
    clusters = sorted({share.cluster for share in mine})
    test = [_test(data, len(turns), cluster, turns[cluster], tests) for cluster in clusters]
    if mix == "own":
        test = [_mixed(part, data, mine, cluster) for part, cluster in zip(test, clusters, strict=True)]
    return {
        "train": _joined(train),
        "val": _joined(val or [Data(part.x[:peek], part.y[:peek]) for part in train]),
        "test": _joined(test),
        "cluster": clusters[0] if len(clusters) == 1 else None,
    }


def _mixed(test: Data, data: Dataset, mine: Sequence[Share], cluster: int) -> Data:
    """A subset of the test images with the class proportions of the node's training images."""
    like = np.concatenate([data.train.y[share.train] for share in mine if share.cluster == cluster])
    which = same_mix(test.y.numpy(), like)
    return Data(test.x[which], test.y[which])


def _joined(parts: Sequence[Data]) -> Data:
    """A single part is not copied: the nodes of a cluster share their test data."""
    import torch

    return parts[0] if len(parts) == 1 else Data(*(torch.cat(arrays) for arrays in zip(*parts, strict=True)))


def _data(images: Images, which: Indices, angle: float) -> Data:
    import torch

    # channels last in memory, which convolutions prefer: the learner then makes no copy
    x = torch.from_numpy(scaled(turned(images.x[which], angle))).permute(0, 3, 1, 2)
    return Data(x, torch.from_numpy(images.y[which]))


def scaled(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Scale bytes to -1..1, as torchvision's ToTensor and Normalize(0.5, 0.5) do."""
    return SCALED[np.ascontiguousarray(pixels)]


@lru_cache(maxsize=8)
def _test(data: Dataset, clusters: int, cluster: int, angle: float, wanted: Tests) -> Data:
    """Cached, so that all nodes of the cluster share one copy."""
    return _data(data.test, allocation.for_testing(data, clusters, cluster, wanted), angle)


@lru_cache(maxsize=2)
def _auxiliary(data: Dataset, plan: AllocationPlan, turns: tuple[float, ...], used: int) -> dict[str, Any]:
    """The fields of a task; cached, so that all nodes of a process share one copy."""
    if not used:
        return {}
    import torch

    which = allocation.set_aside(data, plan)[:used]
    x = torch.empty(used, data.channels, data.size, data.size)
    for first, angle in enumerate(turns):
        x[first :: len(turns)] = _data(data.train, which[first :: len(turns)], angle).x
    return {"auxiliary": x, "auxiliary_labels": torch.from_numpy(data.train.y[which])}
