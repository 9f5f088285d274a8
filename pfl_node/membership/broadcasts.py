"""A queue of rumours to disseminate; those sent least often go first."""

from __future__ import annotations

from pfl_node.membership.packet import Rumor, rumor_bytes


class Broadcasts:
    """At most one rumour per member: a newer one replaces the older."""

    def __init__(self) -> None:
        self._tiers: list[dict[str, tuple[Rumor, int]]] = []  # by transmission count; with sizes
        self._tier_of: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._tier_of)

    def put(self, rumor: Rumor) -> None:
        self.drop(rumor.member.id)
        self._insert(0, rumor, rumor_bytes(rumor))

    def drop(self, member: str) -> None:
        tier = self._tier_of.pop(member, None)
        if tier is not None:
            del self._tiers[tier][member]

    def take(self, budget: int, limit: int) -> list[Rumor]:
        """As many rumours as fit into `budget` bytes, newest first. A rumour sent `limit` times is dropped."""
        taken: list[tuple[int, Rumor, int]] = []
        for tier, rumors in enumerate(self._tiers):
            for rumor, size in reversed(rumors.values()):
                if size > budget:
                    break
                budget -= size
                taken.append((tier, rumor, size))
        for tier, rumor, size in taken:
            self.drop(rumor.member.id)
            if tier + 1 < limit:
                self._insert(tier + 1, rumor, size)
        return [rumor for _, rumor, _ in taken]

    def _insert(self, tier: int, rumor: Rumor, size: int) -> None:
        while len(self._tiers) <= tier:
            self._tiers.append({})
        self._tiers[tier][rumor.member.id] = (rumor, size)
        self._tier_of[rumor.member.id] = tier
