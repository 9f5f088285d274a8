"""Which places of a run are malicious, and the models that colluding nodes share. Pure."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from pfl_node.errors import ConfigError
from pfl_node.model import Model
from pfl_node.settings import Settings
from pfl_node.settings.sections import AttackSettings
from pfl_node.types import PeerId


def malicious_places(attack: AttackSettings, nodes: int, seed: int) -> frozenset[int]:
    """One random place in each of `share * nodes` equal ranges: tasks give adjacent places to the same cluster."""
    if not attack.kind:
        return frozenset()
    if attack.nodes:
        if (largest := max(attack.nodes)) >= nodes:
            raise ConfigError(f"attack.nodes: there is no place {largest} among {nodes} nodes")
        return frozenset(attack.nodes)
    count = round(attack.share * nodes)
    chance = Random(f"{seed}/attack")
    edges = [i * nodes // count for i in range(count + 1)] if count else []
    return frozenset(chance.randrange(low, high) for low, high in pairwise(edges))


def is_malicious(settings: Settings, index: int | None, nodes: int | None) -> bool:
    if not settings.attack.kind or nodes is None or index is None:
        return False
    return index in malicious_places(settings.attack, nodes, settings.seed)


class SharedModels:
    """The last model of each sender that any colluding node has received."""

    def __init__(self) -> None:
        self.models: dict[tuple[str, PeerId], Model] = {}

    def add(self, sender: PeerId, model: Model) -> None:
        self.models[model.layout.digest, sender] = model

    def of(self, like: Model) -> list[Model]:
        """The models of the same layout, sorted by sender so that the order of arrival does not matter."""
        digest = like.layout.digest
        return [self.models[key] for key in sorted(self.models) if key[0] == digest]
