"""Find neighbours by counting which peers are selected more often than by chance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pfl_node.policies.early_stopping import EarlyStopping
from pfl_node.steps import Peers, Record
from pfl_node.types import PeerId


class FindsNeighbours(EarlyStopping):
    """Step 1 of both forms of PENS (Karlsson & Onoszko 2021, Onoszko et al. 2021)."""

    keeps: ClassVar[tuple[str, ...]] = ("selections", "seen", "picked", "expected", "neighbours", "strangers")

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.selections = 0
        self.seen, self.picked, self.expected = Counter[PeerId](), Counter[PeerId](), dict[PeerId, float]()
        self.neighbours: list[PeerId] | None = None  # None: step 1
        self.strangers: list[PeerId] = []  # peers that were present and not chosen

    def count(self, sampled: Sequence[PeerId], selected: Sequence[PeerId]) -> None:
        """Count a selection, unless there was no peer to select from."""
        if not sampled:
            return
        self.selections += 1
        self.seen.update(sampled)
        self.picked.update(selected)
        for p in sampled:
            self.expected[p] = self.expected.get(p, 0) + len(selected) / len(sampled)

    async def choose_neighbours(self, at_least: int) -> None:
        chosen = more_than_expected(self.picked, self.expected)
        # paper: an empty list; here: the most often selected, so that no node ends up alone
        self.neighbours = chosen or sorted(self.picked, key=lambda p: (-self.picked[p], p))[:at_least]
        self.strangers = [p for p in await Peers() if p not in self.neighbours]
        counts = {"picked": self.picked, "seen": self.seen, "expected": self.expected}
        await Record("neighbours", {"ids": self.neighbours, **counts})

    def neighbours_gone(self, peers: Sequence[PeerId]) -> bool:
        """All my neighbours are gone, but other peers are present."""
        return bool(peers and self.neighbours) and not set(peers) & set(self.neighbours or ())

    @property
    def counts_for_stopping(self) -> bool:
        """Onoszko et al. 2021, section 5.4: early stopping is for step 2."""
        return self.neighbours is not None


def more_than_expected(picked: Mapping[PeerId, int], expected: Mapping[PeerId, float]) -> list[PeerId]:
    """Peers that I selected more often than under a uniform choice, which is seen * m / n_sampled times."""
    return sorted(p for p in picked if picked[p] > expected[p] + 1e-9)
