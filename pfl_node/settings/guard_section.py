"""The `guard` section of the settings."""

from __future__ import annotations

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from pfl_node.settings.section import Section


class GuardSettings(Section):
    """Against bad peers, whatever the policy. All but the quarantine is off, and that needs TLS."""

    outliers: PositiveFloat | None = None
    """Refuse a model whose norm, or distance from mine, is so many MADs (and half) above the median of what other
    peers sent last, or that is turned against mine; 6 is careful. None: off."""
    least: PositiveInt = 4
    """Other peers whose last models must be known before one is called an outlier."""
    gate: PositiveFloat | None = None
    """Do not merge a model whose validation loss is above mine by more than this share of what I have learnt: the
    loss of an untrained model less mine; 0.5 is a start. None: off. Costs a scoring for each model."""
    samples: PositiveInt | None = 128
    """The gate: own validation samples to score a model on; None: all."""
    blame: NonNegativeFloat = 0.0
    """What a model that the gate refused counts against its sender. Above 0 only where all honest nodes have the
    like data: a model that does badly on other data is no offence."""
    limit: PositiveFloat = 2.5
    """What must count against a peer for a quarantine. A NaN is 1, a model turned against mine 0.2 to 1, one
    several times as large as others 0.5 to 1, a flood 0.005; one that is only far from mine 0."""
    half_life: PositiveFloat = 300.0
    """Seconds after which what counts against a peer is half."""
    quarantine: NonNegativeFloat = 60.0
    """Seconds for which its models are refused then; each time twice as long, up to 16 times. 0: never."""
    names: bool = False
    """Without TLS: believe the names in messages. Else nobody gets into quarantine: anybody could use a name."""
