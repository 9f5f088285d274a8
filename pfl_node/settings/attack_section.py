"""The `attack` section of the settings."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from pfl_node.settings.section import Section

Kind = Literal["sign_flip", "scaled", "noise", "alie", "nan", "free_rider", "replay", "label_flip", "lying_scores"]


class AttackSettings(Section):
    """Some nodes of a simulation or a swarm are malicious, to see what the others bear. A daemon refuses it."""

    kind: tuple[Kind, ...] = ()
    """What they do, one or several of: sign_flip, scaled, noise, alie, nan (they send bad models), free_rider
    (what came to them, untrained), replay (their model of `lag` rounds ago), label_flip (trained on wrong labels),
    lying_scores (every model they are asked about is perfect; with feded, no sample is strange to them)."""
    share: float = Field(default=0.2, ge=0, le=1)
    """Of the nodes, spread over all places by the seed."""
    nodes: tuple[NonNegativeInt, ...] = ()
    """Which places, instead."""
    strength: PositiveFloat | None = None
    """sign_flip and scaled: the factor (None: 1 and 10); noise: times the spread of the model (None: 1); alie: z
    (None: as its paper computes it from the numbers of nodes and of bad ones)."""
    collude: bool = False
    """alie, in a simulation: the bad nodes tell each other all they know."""
    lag: PositiveInt = 10
    """replay: rounds."""
    start: NonNegativeInt = 0
    """The first bad round."""
