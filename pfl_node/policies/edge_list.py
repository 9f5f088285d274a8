"""A graph from a user's file, with one edge `a b` per line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pfl_node.errors import ConfigError
from pfl_node.policies.topology import Graph
from pfl_node.types import PeerId

PLACE = re.compile(r"[0-9]{1,6}")  # ids are longer or contain letters


@dataclass(frozen=True, slots=True)
class Edges:
    """The neighbours of each node. All nodes are named by id, or all by position in the sorted list of ids."""

    near: dict[str, tuple[str, ...]]
    places: bool

    def graph(self, everybody: Sequence[PeerId]) -> Graph:
        """The graph in ids. Ids need not exist; positions beyond the list are dropped."""
        names = {str(i): p for i, p in enumerate(sorted(everybody))}
        if not self.places:
            names = {name: PeerId(name) for name in self.near}
        return {names[a]: tuple(names[b] for b in bs if b in names) for a, bs in self.near.items() if a in names}


def read_edges(path: str) -> Edges:
    try:
        text = Path(path).read_text("utf-8-sig")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"graph file {path!r} cannot be read: {reason}") from error
    return parse_edges(text, path)


def parse_edges(text: str, name: str) -> Edges:
    """Empty lines and comments after # are skipped. Duplicate edges count once."""
    near: dict[str, set[str]] = {}
    kinds: dict[bool, int] = {}  # positions or ids, and the line where each was first seen
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        where = f"graph file {name!r}, line {number}"
        if len(words) != 2:
            raise ConfigError(f"{where}: {' '.join(words)!r} is not an edge; write two nodes, such as 0 1")
        for word in words:
            kinds.setdefault(bool(PLACE.fullmatch(word)), number)
        if len(kinds) == 2:
            hint = f"line {kinds[True]} has a position, line {kinds[False]} an id; use one kind for all nodes"
            raise ConfigError(f"{where}: {hint}")
        a, b = (str(int(word)) if kinds.keys() == {True} else word for word in words)
        if a == b:
            raise ConfigError(f"{where}: an edge from {a} to itself")
        near.setdefault(a, set()).add(b)
        near.setdefault(b, set()).add(a)
    if not near:
        raise ConfigError(f"graph file {name!r} has no edges; write one per line, such as 0 1")
    return Edges({a: tuple(sorted(bs)) for a, bs in sorted(near.items())}, places=True in kinds)
