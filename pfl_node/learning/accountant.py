"""The epsilon of many steps of DP-SGD, from Renyi divergences as computed by Opacus."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from opacus.accountants import RDPAccountant
from opacus.accountants.analysis import rdp

from pfl_node.protocol.privacy.dp_account import DpStep

ORDERS = RDPAccountant.DEFAULT_ALPHAS


def epsilon(steps: Mapping[DpStep, int], delta: float) -> float:
    """The epsilon of all steps together, for one sample whose contribution is present or nulled. The number of
    samples is fixed and public; replacing a sample has twice the sensitivity."""
    if not steps:
        return 0.0
    spent = np.sum([_one(step) * times for step, times in steps.items()], axis=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # if the best order is the last one, this is still an upper bound
        found, _ = rdp.get_privacy_spent(orders=ORDERS, rdp=spent, delta=delta)
    return float(found)


@lru_cache(maxsize=64)
def _one(step: DpStep) -> npt.NDArray[np.float64]:
    found = rdp.compute_rdp(q=step.rate, noise_multiplier=step.noise, steps=1, orders=ORDERS)
    return np.asarray(found, np.float64)
