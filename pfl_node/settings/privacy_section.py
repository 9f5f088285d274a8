"""The `privacy` section of the settings."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat

from pfl_node.settings.section import Section


class PrivacySettings(Section):
    """What others can find out about my samples. All of it is off; what it promises is in docs/privacy.md."""

    oracle: bool = False
    """Answer EvaluateModel with noise and by a budget. An exact answer tells whether a sample is mine."""
    oracle_epsilon: PositiveFloat = 0.1
    """Of one answer. The noise is Laplace's, of scale 1 / (epsilon * samples) times what is told."""
    oracle_budget: PositiveFloat = 0.2
    """Epsilon of all answers to one peer; then it is refused. With 0.2 no attack by one peer has an AUC above
    0.55."""
    oracle_total: PositiveFloat | None = None
    """Epsilon of all answers to all peers together; None: no limit. Without TLS the only limit that holds."""
    oracle_clip: PositiveFloat = 3.0
    """What the loss of a sample counts at the most; a little above the logarithm of the number of classes."""
    oracle_tells: Literal["both", "loss", "accuracy"] = "both"
    """Which figures; both share the epsilon, so each has twice the noise. loss: the accuracy is not a number then;
    accuracy: the loss is the share of errors then."""
    dp: bool = False
    """Train with DP-SGD; needs `pip install 'pfl-node[dp]'`."""
    dp_noise: PositiveFloat = 1.0
    """Standard deviation of the noise, in units of dp_clip."""
    dp_clip: PositiveFloat = 1.0
    """The largest norm of one sample's gradient."""
    dp_delta: float = Field(default=1e-5, gt=0, lt=1)
    """At which the epsilon is told; well below 1 / samples."""
    dp_epsilon: PositiveFloat | None = None
    """Train no more when the next training would spend more than this in all; None: no limit."""
