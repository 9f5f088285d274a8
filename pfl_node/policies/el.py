"""`el`: epidemic learning. Nodes average with their neighbours in a graph that is new in every round."""

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

        @property
        def usual_degree(self) -> int:
            return self.degree if self.graph == "shared" else 0

    async def near(self, t: int) -> Near:
        # paper: an oracle distributes the graph; here: each node derives it, because no node is special
        # paper: nodes do not know who chose them; here: they do, because they wait only for models that are sent
        peers, drawn = await Peers(), {"degree": self.cfg.degree, "seed": self.seed, "round": t}
        if self.cfg.graph == "own":
            return Near(recipients(self.me, peers, **drawn), senders(self.me, peers, **drawn))
        both = neighbours(self.me, peers, **drawn)
        return Near(both, both)

    @property
    def others(self) -> bool:
        """If each node chooses for itself, a node with another view of the membership may choose me too. In the
        shared graph only neighbours are averaged, so that no other node can push a model into the mean."""
        return bool(self.cfg.graph == "own")
