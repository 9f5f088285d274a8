"""`dfedpgp`: a private head, and a core that is averaged by push-sum over links that have one direction."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pfl_node.policies.dfedalt import Alternating
from pfl_node.policies.sgp import Sgp


class DFedPgp(Alternating, Sgp):
    """DFedPGP, partial gradient push (Liu et al. 2024)."""

    # paper: push-sum, but its code takes the plain mean with 10 random senders of 100; here: push-sum to 4 random
    # recipients, because 4 is the degree of the other policies
    class Config(Alternating.Config, Sgp.Config):
        graph: Literal["exponential", "random"] = Field(
            "random", description="recipients: random peers, or 1, 2, 4, ... places ahead in turn"
        )
        degree: int = Field(4, ge=1, description="recipients of a node in a round")

    keeps = Sgp.keeps
    part = "core"
