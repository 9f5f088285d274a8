"""FedED's student on MNIST: the effect of the loss, the teacher's rows and the choice of an epoch.

    python -m benchmarks.students DATA [ALPHA [SEEDS]]

Ten clients share 6,000 digits by Dirichlet(ALPHA); each trains a CNN1. Each weighting scheme gives one teacher;
from it a CNN2 learns in each way, with the same local models, the same initial student and the same batches.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from pfl_node import predictions
from pfl_node.learning.build import learner_at
from pfl_node.learning.learner import Learner
from pfl_node.learning.task import Place
from pfl_node.model import Model
from pfl_node.policies import ensemble
from pfl_node.settings import Settings

CLIENTS, EPOCHS, NOVELTY = 10, 20, 20
WEIGHTS: tuple[ensemble.How, ...] = ("w0", "w1", "w2")
WAYS: dict[str, dict[str, Any]] = {
    "raw outputs, last epoch": {"loss": "mse"},
    "raw outputs, best epoch": {"loss": "mse", "best": True},
    "softmax, last epoch": {"loss": "mse_softmax"},
    "softmax, best epoch": {"loss": "mse_softmax", "best": True},
}


def main(root: Path, alpha: float = 0.1, seeds: int = 3) -> None:
    found: dict[tuple[str, str], list[float]] = {}
    for seed in range(seeds):
        for weights, way, accuracy in one_seed(root, alpha, seed):
            found.setdefault((weights, way), []).append(accuracy)
            print(f"seed {seed} {weights} {way}: {100 * accuracy:.1f}", file=sys.stderr, flush=True)
    print(f"| weights | way | {' | '.join(f'seed {seed}' for seed in range(seeds))} | mean |")
    print(f"| --- | --- |{' ---: |' * (seeds + 1)}")
    for (weights, way), values in found.items():
        cells = " | ".join(f"{100 * v:.1f}" for v in (*values, fmean(values)))
        print(f"| {weights} | {way} | {cells} |")


def one_seed(root: Path, alpha: float, seed: int) -> Iterator[tuple[str, str, float]]:
    clients = [client(root, alpha, seed, index) for index in range(CLIENTS)]
    said = []
    for index, me in enumerate(clients):
        f_k = me.train(me.fresh(1000 * seed + index, local=True), seed=index, epochs=EPOCHS)
        said.append(me.predict(f_k, seed=0, novelty=NOVELTY, counts=True))
    for weights in WEIGHTS:
        z = ensemble.teacher(weights, said, [me.samples for me in clients])
        assert z is not None
        yield weights, "ensemble without a student", clients[0].score([z])[0].accuracy
        rows = {"": z, ", rows made to sum to one": normalised(z)} if weights == "w1" else {"": z}
        for (way, knobs), (more, teacher) in product(WAYS.items(), rows.items()):
            start = clients[0].fresh(10_000 + seed)
            student = clients[0].distill(start, seed=seed, teacher=teacher, **knobs)
            yield weights, way + more, clients[0].score([student], split="test")[0].accuracy


def normalised(z: Model) -> Model:
    rows = predictions.outputs(z)
    return predictions.pack(z.layout, rows / np.maximum(rows.sum(1, keepdims=True), 1e-9))


def client(root: Path, alpha: float, seed: int, index: int) -> Learner:
    task: dict[str, Any] = {"name": "mnist", "root": str(root), "model": "cnn1", "partition": "dirichlet"}
    task |= {"alpha": alpha, "auxiliary": 0.9, "auxiliary_samples": 2000, "val": 0, "tests": "all"}
    train = {"optimizer": "sgd", "lr": 0.001, "momentum": 0.9, "batch": 16}
    policy = {"name": "feded", "student_model": "cnn2"}
    told = {"task": task, "train": train, "policy": policy, "seed": seed, "device": "cpu"}
    place = Place(index=index, nodes=CLIENTS, seed=seed, node_id=f"n{index:03}")
    return learner_at(Settings.model_validate(told), place)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *(kind(word) for kind, word in zip((float, int), sys.argv[2:], strict=False)))
