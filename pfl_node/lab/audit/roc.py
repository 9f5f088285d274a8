"""How well scores tell members from others: by the area under the curve, and when few are accused wrongly"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, sqrt

import numpy as np
import numpy.typing as npt

FPR = 0.01
Scores = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Roc:
    """0.5 and 0.01 are those of a coin."""

    auc: float
    tpr: float  # when 1 % of the others are taken for members
    chance: float = 0.0  # how far from 0.5 one who knows nothing gets, with so many attempts, 19 times in 20


def odds(members: Sequence[float], others: Sequence[float]) -> Roc:
    """Higher scores say "member"; equal ones are a coin's toss."""
    a, b = np.sort(np.asarray(members, float)), np.sort(np.asarray(others, float))
    below, upto = np.searchsorted(b, a, "left"), np.searchsorted(b, a, "right")
    auc = float((below + upto).mean() / 2 / len(b))
    return Roc(auc, _tpr(a, b), 2 * sqrt((len(a) + len(b) + 1) / (12 * len(a) * len(b))))


def _tpr(members: Scores, others: Scores) -> float:
    """Those above a threshold are accused, and of those at it so many that the share of others is right."""
    allowed = FPR * len(others)
    threshold = others[-1 - int(allowed)] if allowed < len(others) else others[0]
    above, at = (others > threshold).sum(), (others == threshold).sum()
    share = min(1.0, (allowed - above) / at)
    return float((members > threshold).mean() + share * (members == threshold).mean())


def bound(epsilon: float) -> Roc:
    """What no attack on an epsilon-differentially private answer can surpass."""
    return Roc(exp(epsilon) / (1 + exp(epsilon)), min(1.0, exp(epsilon) * FPR, 1 - exp(-epsilon) * (1 - FPR)))
