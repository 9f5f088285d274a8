"""Which places of a run are bad, and what the bad nodes tell each other. Pure."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from pfl_node.errors import ConfigError
from pfl_node.model import Model
from pfl_node.settings import Settings
from pfl_node.settings.sections import AttackSettings
from pfl_node.types import PeerId


def bad_places(attack: AttackSettings, nodes: int, seed: int) -> frozenset[int]:
    """As many as the share says, one in each stretch of places, as tasks give neighbouring ones to a cluster."""
    if not attack.kind:
        return frozenset()
    if attack.nodes:
        if (strange := max(attack.nodes)) >= nodes:
            raise ConfigError(f"attack.nodes: there is no place {strange} among {nodes} nodes")
        return frozenset(attack.nodes)
    count = round(attack.share * nodes)
    chance = Random(f"{seed}/attack")
    edges = [i * nodes // count for i in range(count + 1)] if count else []
    return frozenset(chance.randrange(low, high) for low, high in pairwise(edges))


def is_bad(settings: Settings, index: int | None, nodes: int | None) -> bool:
    """Is this place of a run malicious?"""
    if not settings.attack.kind or nodes is None or index is None:
        return False
    return index in bad_places(settings.attack, nodes, settings.seed)


class SharedModels:
    """The last model of each node that any of them has seen."""

    def __init__(self) -> None:
        self.models: dict[tuple[str, PeerId], Model] = {}

    def heard(self, sender: PeerId, model: Model) -> None:
        self.models[model.layout.digest, sender] = model

    def of(self, like: Model) -> list[Model]:
        """Those of the same layout, by sender, so that nothing depends on who spoke first."""
        digest = like.layout.digest
        return [self.models[key] for key in sorted(self.models) if key[0] == digest]
