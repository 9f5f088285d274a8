"""`el`: epidemic learning. Everybody averages with the neighbours of a graph that is new every round."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pfl_node.policies.lockstep import Lockstep, Near
from pfl_node.policies.topology import neighbours, recipients, senders
from pfl_node.steps import Peers


class El(Lockstep):
    """Epidemic learning (de Vos et al. 2023): EL-Oracle with a shared graph, EL-Local with own choices."""

    class Config(Lockstep.Config):
        degree: int = Field(4, ge=1, description="neighbours of a node in a round's graph")
        graph: Literal["shared", "own"] = Field(
            "shared", description="shared: the neighbours of a regular graph; own: each node picks its recipients"
        )

    async def near(self, t: int) -> Near:
        # paper: an oracle hands out the graph; here: each node draws it from the run's seed, as none is special
        # paper: nobody knows who picked it; here: all do, because nobody should wait for what will not come
        peers, drawn = await Peers(), {"degree": self.cfg.degree, "seed": self.seed, "round": t}
        if self.cfg.graph == "own":
            return Near(recipients(self.me, peers, **drawn), senders(self.me, peers, **drawn))
        both = neighbours(self.me, peers, **drawn)
        return Near(both, both)

    @property
    def others(self) -> bool:
        """Where each picks for itself, one that knows of other nodes than I do may pick me too. In the shared
        graph it is no neighbour, and only neighbours are in the mean: nobody else can push a model into it."""
        return bool(self.cfg.graph == "own")
