"""What happens to a packet on its way, from one seed: lost, late, or stopped at a border. Knows no network."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """Of one way. Seconds, and the share of packets that are lost."""

    delay: float = 0.0
    jitter: float = 0.0  # up to so much more than the delay
    loss: float = 0.0

    def __post_init__(self) -> None:
        if self.delay < 0 or self.jitter < 0 or not 0 <= self.loss <= 1:
            raise ValueError(f"no such weather: {self}")


FINE = Weather()


class Sky:
    """The weather of every way between named places. It can be changed at any time."""

    def __init__(self, seed: int = 0, everywhere: Weather = FINE) -> None:
        self.everywhere = everywhere
        self._rng = Random(f"weather/{seed}")
        self._ways: dict[tuple[str, str], Weather] = {}
        self._side: dict[str, int] = {}  # of the border

    def over(self, a: str, b: str, weather: Weather | None) -> None:
        """On the way from a to b only; None: as everywhere."""
        if weather is None:
            self._ways.pop((a, b), None)
        else:
            self._ways[a, b] = weather

    def split(self, groups: Iterable[Collection[str]]) -> None:
        """Nothing goes from one group to another. Who is in none of them is not concerned."""
        self._side = {name: number for number, group in enumerate(groups) for name in group}

    def heal(self) -> None:
        self._side = {}

    def parted(self, a: str, b: str) -> bool:
        here, there = self._side.get(a), self._side.get(b)
        return here is not None and there is not None and here != there

    def late(self, a: str, b: str) -> float:
        """Seconds until something from a is at b, when it is not lost."""
        weather = self._ways.get((a, b), self.everywhere)
        return weather.delay + (self._rng.uniform(0, weather.jitter) if weather.jitter else 0.0)

    def fate(self, a: str, b: str) -> float | None:
        """Seconds until a packet from a is at b; None: it never is."""
        if self.parted(a, b):
            return None
        loss = self._ways.get((a, b), self.everywhere).loss
        if loss and self._rng.random() < loss:
            return None
        return self.late(a, b)
