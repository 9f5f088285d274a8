"""Groups of nodes that learn more with each other than with the rest. Pure.

Louvain's method (Blondel et al. 2008): move nodes to the group where modularity increases most, then treat groups
as nodes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

Weights = Mapping[str, Mapping[str, float]]  # how much the first node learns from the second
Graph = dict[int, dict[int, float]]  # symmetric; a self-loop has the weight within a group
CLEAR = 0.5  # smallest separation of groups that count as clusters
ENOUGH = 3.0  # and smallest mean strength of a node
TINY = 1e-9


@dataclass(frozen=True, slots=True)
class Clusters:
    """Groups, largest first, and their separation, from 0 (random) to 1 (no exchange between groups)."""

    groups: tuple[tuple[str, ...], ...]
    separation: float
    strength: float  # mean sum of a node's weights

    @property
    def clear(self) -> tuple[tuple[str, ...], ...]:
        """The groups that may be called clusters; none in the first rounds, or if all nodes learn with all."""
        if self.separation < CLEAR or self.strength < ENOUGH:
            return ()
        several = tuple(group for group in self.groups if len(group) > 1)
        return several if len(several) > 1 else ()


def find_clusters(weights: Weights) -> Clusters:
    """Every named node is in one group. Equal weights give equal groups."""
    names = sorted({*weights, *(other for row in weights.values() for other in row)})
    place = {name: i for i, name in enumerate(names)}
    graph: Graph = {i: {} for i in range(len(names))}
    for name, row in weights.items():
        for other, weight in row.items():
            if weight > 0 and other != name:
                a, b = place[name], place[other]
                graph[a][b] = graph[a].get(b, 0.0) + weight
                graph[b][a] = graph[b].get(a, 0.0) + weight
    groups = _louvain(graph)
    found = [tuple(names[i] for i in sorted(group)) for group in groups]
    found.sort(key=lambda group: (-len(group), group))
    strength = sum(w for row in graph.values() for w in row.values()) / 2 / max(1, len(names))
    return Clusters(tuple(found), _separation(graph, groups), strength)


def _louvain(graph: Graph) -> list[set[int]]:
    groups = [{i} for i in graph]
    while True:
        label = _moved(graph)
        if len(set(label.values())) == len(graph):
            return groups
        number = {old: new for new, old in enumerate(sorted(set(label.values())))}
        merged: list[set[int]] = [set() for _ in number]
        for node, old in label.items():
            merged[number[old]] |= groups[node]
        groups = merged
        graph = _folded(graph, {node: number[old] for node, old in label.items()})


def _moved(graph: Graph) -> dict[int, int]:
    """Move each node to the neighbouring group where modularity increases most, until no node moves."""
    degree = {node: sum(row.values()) for node, row in graph.items()}
    total = sum(degree.values())
    label = {node: node for node in graph}
    weight = dict(degree)  # total weight of each group
    moving = total > TINY
    while moving:
        moving = False
        for node, row in graph.items():
            links: defaultdict[int, float] = defaultdict(float)
            for other, w in row.items():
                if other != node:
                    links[label[other]] += w
            old = label[node]
            weight[old] -= degree[node]
            stays = links[old] - weight[old] * degree[node] / total
            best, most = old, stays + TINY
            for group, link in sorted(links.items()):
                if (gain := link - weight[group] * degree[node] / total) > most:
                    best, most = group, gain
            weight[best] += degree[node]
            label[node] = best
            moving |= best != old
    return label


def _folded(graph: Graph, label: Mapping[int, int]) -> Graph:
    folded: Graph = {group: {} for group in set(label.values())}
    for node, row in graph.items():
        mine = folded[label[node]]
        for other, w in row.items():
            mine[label[other]] = mine.get(label[other], 0.0) + w
    return folded


def _separation(graph: Graph, groups: list[set[int]]) -> float:
    """Modularity as a share of its maximum for groups of these weights."""
    total = sum(w for row in graph.values() for w in row.values())
    if total <= TINY:
        return 0.0
    within = sum(w for group in groups for i in group for j, w in graph[i].items() if j in group) / total
    chance = sum((sum(w for i in group for w in graph[i].values()) / total) ** 2 for group in groups)
    return (within - chance) / (1 - chance) if 1 - chance > TINY else 0.0
