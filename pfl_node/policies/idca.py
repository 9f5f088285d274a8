"""`idca`: k whole models; each node trains the one that fits its data. The predecessor of `facade`, without a
core."""

from __future__ import annotations

from collections.abc import Sequence

from pfl_node.model import Model
from pfl_node.policies.facade import Facade
from pfl_node.types import Offer


class Idca(Facade):
    """IDCA, iterative clustering without a server (Trinca 2024, section 5.1, after IFCA of Ghosh et al. 2020)."""

    part = "model"

    def whole(self, i: int) -> Model:
        return self.heads[i]

    async def merge_core(self, offers: Sequence[Offer]) -> None:
        """There is no core."""
