"""`random_weighted`: random peers, weighted by the accuracy of my model on their data. Line numbers refer to the
thesis' Algorithm 5."""

from __future__ import annotations

from collections.abc import Sequence

from pfl_node.policies.random_pull import RandomPull
from pfl_node.steps import Ask, Average, Score
from pfl_node.types import Offer, PeerId


class RandomWeighted(RandomPull):
    """RandomWeighted (Karlsson & Onoszko 2021, Algorithm 5)."""

    asks = True

    async def average(self, selected: Sequence[PeerId]) -> Sequence[Offer]:  # 7
        scores = await Ask(selected, self.model)  # 9-12
        # paper: all selected are fetched; here: not those with answer 0 or none, because they have no weight
        a = {p: scores[p].accuracy for p in selected if p in scores and scores[p].accuracy > 0}
        offers = await self.fetch(list(a))  # 13
        (score,) = await Score([self.model], split="val")  # 14
        own = score.accuracy if score.accuracy > 0 else 0.0
        total = own + sum(a[o.sender] for o in offers) or 1.0
        weights = [a[o.sender] / total for o in offers]
        self.model = await Average(self.model, [o.model for o in offers], weights, own / total)  # 15-17
        return offers
