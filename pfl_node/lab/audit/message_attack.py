"""The attack on messages whose noise is correlated: is one sample in a node's gradient?

The attacker knows the model from which a round started, the graph, all data but that sample, and all messages. It
has the secrets of some nodes, so it subtracts the noise of their pairs, and combines the rest with the weights of
the likelihood ratio. The messages come from real learners and the noise from the real code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pfl_node.policies import configure, load_policy
from pfl_node.policies.base import PolicyConfig
from pfl_node.policies.dpsgd import Dpsgd
from pfl_node.policies.topology import Graph, regular
from pfl_node.protocol.privacy.pair_noise import agreement, own_variance, pair_seeds
from pfl_node.settings import Settings
from pfl_node.types import PeerId

if TYPE_CHECKING:
    from pfl_node.learning.learner import Learner
    from pfl_node.learning.task import Task

Vector = npt.NDArray[np.float64]
WARM_UP = 20  # steps of training before the attacked one
FAR = np.float32(1e4)  # factor on an input at which the model is certain, so that the gradient vanishes
CLASSES = 10  # classes of the digits


@dataclass(frozen=True, slots=True)
class Attacker:
    name: str
    messages: bool = True  # sees the messages of all nodes, not only the victim's
    neighbours: int = 0  # number of neighbours whose secrets it has
    others: bool = False  # has the secrets of all nodes that are not neighbours


ALONE = Attacker("one message", messages=False)
EAVESDROPPER = Attacker("eavesdropper")
NEIGHBOUR = Attacker("neighbour", neighbours=1)


class NoisyExchange:
    """One step of DP-SGD at each node of the policy's graph, in units of the noise that plain DP-SGD adds to a
    full batch. `fills` are the batches of the nodes as fractions of `train.batch`."""

    def __init__(self, settings: Settings, nodes: int, fills: Sequence[float] = ()) -> None:
        policy = load_policy(settings.policy.name)
        cfg = configure(policy, settings.policy.options)
        self.settings, self.degree = settings, policy.pair_degree(cfg)
        self.ids = [PeerId(f"n{i:03}") for i in range(nodes)]
        self.graph = _graph(cfg, self.ids, self.degree, settings.seed)
        self.victim = self.ids[0]
        self.fills = fills or [1.0] * nodes
        privacy = settings.privacy
        self.pair = privacy.dp_pair_noise
        self.own = [
            own_variance(self.pair, len(self.graph[id]), privacy.dp_colluders, self.degree, 1 / fill)
            for id, fill in zip(self.ids, self.fills, strict=True)
        ]

    def noise(self, attacker: Attacker) -> tuple[float, Vector]:
        """The standard deviation of the noise that the attacker cannot remove from the victim's gradient, relative
        to a clipped sample as in plain DP-SGD, and the weights with which it combines the messages for that."""
        known = self.colluders(attacker)
        n, fill = len(self.ids), self.fills[0]
        covariance = np.diag(self.own)
        for i, one in enumerate(self.ids):
            for other in self.graph[one]:
                if one not in known and other not in known:
                    covariance[i, i] += self.pair**2
                    covariance[i, self.ids.index(other)] -= self.pair**2
        if not attacker.messages:
            return fill * sqrt(covariance[0, 0]), np.eye(n)[0]
        inverse = np.linalg.inv(covariance)
        return fill / sqrt(inverse[0, 0]), inverse[0] / inverse[0, 0]

    def colluders(self, attacker: Attacker) -> Sequence[PeerId]:
        near = self.graph[self.victim]
        others = [id for id in self.ids if id not in (self.victim, *near)] if attacker.others else []
        return (*near[: attacker.neighbours], *others)

    def secret(self, one: PeerId, other: PeerId) -> bytes:
        return sha256("/".join((str(self.settings.seed), *sorted((one, other)))).encode()).digest()

    def options(self, me: PeerId, round: int) -> dict[str, Any]:
        near = pair_seeds(me, self.graph[me], lambda peer: self.secret(me, peer), self.settings.run, round)
        return {"partners": (near, self.degree), "steps": 1, "seed": round}


class MessageAttack:
    """Attempts on one sample, half of them on a victim that has it. Every node has one sample more than in the
    task: the attacked one, or one without a gradient, so that the number of samples reveals nothing."""

    def __init__(self, settings: Settings, nodes: int) -> None:
        tasks = [_task(settings, i, nodes) for i in range(nodes)]
        sizes = [len(task.train.y) + 1 for task in tasks]
        self.samples = sizes[0] - 1  # of the victim, without the attacked one
        self._batch = max(settings.train.batch or 0, *sizes)  # so that the attacked sample is in it
        self.exchange = NoisyExchange(settings, nodes, [size / self._batch for size in sizes])
        first = self._learner(tasks[0], quiet=True)
        self.start = first.train(first.fresh(0), seed=0, steps=WARM_UP)
        x = tasks[0].test.x[:1].numpy()
        has = _one_more(tasks[0], x, self._losses(tasks[0], x).argmax())  # a wrong answer has a large gradient
        without = [_one_more(task, FAR * x, self._losses(task, FAR * x).argmin()) for task in tasks]
        self._learners = [self._learner(task, f"audit/{i}") for i, task in enumerate(without)]
        self._with = self._learner(has, "audit/0")
        clean = [
            self._update(self._learner(task, quiet=True), {"steps": 1, "seed": 0}) for task in (*without, has)
        ]
        self._clean, sample = np.array(clean[:-1]), clean[-1] - clean[0]
        self._direction = sample / np.linalg.norm(sample)

    def scores(self, attackers: Sequence[Attacker], trials: int) -> dict[str, tuple[list[float], list[float]]]:
        """For each attacker, its scores of attempts on a victim that has the sample, and on one that does not."""
        found: dict[str, tuple[list[float], list[float]]] = {a.name: ([], []) for a in attackers}
        weights = {a.name: self.exchange.noise(a)[1] for a in attackers}
        for round in range(trials):
            each = [self.exchange.options(id, round) for id in self.exchange.ids]
            sent = [self._update(me, given) for me, given in zip(self._learners, each, strict=True)]
            for which, mine in enumerate((self._update(self._with, each[0]), sent[0])):
                along = (np.array([mine, *sent[1:]]) - self._clean) @ self._direction
                for attacker in attackers:
                    left = along - self._removed(attacker, round)
                    found[attacker.name][which].append(float(weights[attacker.name] @ left))
        return found

    def _removed(self, attacker: Attacker, round: int) -> Vector:
        """The part of each message that the attacker's secrets explain, along the sample's gradient."""
        ids, known = self.exchange.ids, self.exchange.colluders(attacker)
        found = np.zeros(len(ids))
        for i, me in enumerate(ids):
            shared = self.exchange.graph[me] if me in known else known
            theirs = {self.exchange.secret(me, peer).hex() for peer in shared}
            for sign, seed in self.exchange.options(me, round)["partners"][0]:
                if seed.partition("/")[0] in theirs:
                    found[i] += sign * self._pair_noise(seed)
        return found

    def _pair_noise(self, seed: str) -> float:
        """The pair noise as DP-SGD draws it, projected on the sample's gradient."""
        from pfl_node.learning.seeding import noise_of

        privacy = self.exchange.settings.privacy
        chance = noise_of("pair", seed, agreement(privacy, self.exchange.degree, self._batch, lr=1.0, duration=1))
        drawn = np.concatenate([chance.standard_normal(e.shape).ravel() for e, _ in self.start.layout.spans()])
        unit = privacy.dp_noise * privacy.dp_clip / self._batch
        return float(drawn @ self._direction) * unit * self.exchange.pair

    def _losses(self, task: Task, x: Any) -> Vector:
        """The loss of the sample with each label."""
        each = type(task.train)(np.concatenate([x] * CLASSES), np.arange(CLASSES))
        probe = self._learner(replace(task, train=each), quiet=True)
        return np.asarray(probe.each(self.start)[0], np.float64)

    def _learner(self, task: Task, secret: str = "", *, quiet: bool = False) -> Learner:
        from pfl_node.learning.learner import Learner
        from pfl_node.protocol.privacy.dp_account import DpAccount

        settings = self.exchange.settings
        noise = {"dp_noise": 1e-9} if quiet else {}
        train = settings.train.model_copy(update={"lr": 1.0, "batch": self._batch, "steps": 1})
        return Learner(task, train, "cpu", settings.privacy.model_copy(update=noise), DpAccount(secret=secret))

    def _update(self, me: Learner, options: dict[str, Any]) -> Vector:
        """The noisy gradient that a message reveals."""
        return self.start.vector.astype(np.float64) - me.train(self.start, **options).vector


def _graph(cfg: PolicyConfig, ids: Sequence[PeerId], degree: int, seed: int) -> Graph:
    """The graph of the first round."""
    if not isinstance(cfg, Dpsgd.Config):
        return regular(tuple(ids), degree, seed, 0)
    found = cfg.graph_of(set(ids), set(ids), seed)
    return {id: found.get(id, ()) for id in ids}


def _task(settings: Settings, index: int, nodes: int) -> Task:
    from pfl_node.learning.task import Place
    from pfl_node.learning.tasks import load_task

    place = Place(index=index, nodes=nodes, seed=settings.seed, node_id=f"n{index:03}")
    return load_task(settings.task, place, settings.data)


def _one_more(task: Task, x: Any, label: Any) -> Task:
    data = task.train
    y = np.append(data.y.numpy(), label)
    return replace(task, train=type(data)(np.concatenate([data.x.numpy(), x]), y))
