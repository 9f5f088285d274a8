"""`idca`: k whole models; each node trains the one that fits its data. The predecessor of `facade`, without a
core."""

from __future__ import annotations

from pfl_node.model import Model
from pfl_node.policies.facade import Facade


class Idca(Facade):
    """IDCA, iterative clustering without a server (Trinca 2024, section 5.1, after IFCA of Ghosh et al. 2020)."""

    # paper: a server has the k models (IFCA); here: everybody has all of them, because there is no server
    part = "model"

    def whole(self, i: int) -> Model:
        return self.heads[i]
