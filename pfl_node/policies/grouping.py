"""Find the group of models whose average with mine has the lowest loss on my validation data."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from random import Random

from pfl_node.aggregate import bounded, mean
from pfl_node.model import Model
from pfl_node.steps import Score
from pfl_node.types import Offer

WORST = 1e9  # the loss of a group whose loss is not finite


async def double_greedy(
    mine: Offer, offers: Sequence[Offer], most: int, rng: Random, claim: float | None, found: Sequence[Offer] = ()
) -> list[Offer]:
    """GGC of Kharrat, Canini & Horvath 2025: randomised double greedy search (Buchbinder et al. 2012). x grows
    from the group `found` so far, y shrinks from all; each model joins x or leaves y, in random order, with odds
    in proportion to the gain of each choice. At most `most` models are in the group."""
    new = [o for o in offers if o.model.is_finite()]
    x, y = list(found), [*found, *new]
    r_x, r_y = await rewards(mine, (x, y), claim)
    for o in rng.sample(new, len(new)):
        more, less = [*x, o], [other for other in y if other is not o]
        r_more, r_less = await rewards(mine, (more, less), claim)
        a, b = max(r_more - r_x, 0.0), max(r_less - r_y, 0.0)
        # paper: its code adds it if neither gains; here: only if x loses nothing, because on few validation
        # samples a group would otherwise grow with models that harm it
        if len(x) < most and rng.random() < (a / (a + b) if a + b else float(r_more >= r_x)):
            x, r_x = more, r_more
        else:
            y, r_y = less, r_less
    return x


async def rewards(mine: Offer, groups: Sequence[Sequence[Offer]], claim: float | None) -> list[float]:
    """The negative validation loss of each group's average with my model."""
    scores = await Score([average(mine, group, claim) for group in groups], split="val")
    return [-min(e.loss, WORST) if isfinite(e.loss) else -WORST for e in scores]


def average(mine: Offer, group: Sequence[Offer], claim: float | None) -> Model:
    return mean([mine.model, *(o.model for o in group)], weights(mine, group, claim))


def weights(mine: Offer, group: Sequence[Offer], claim: float | None) -> list[float]:
    """The weights of my model and of the group's models: their numbers of samples. The numbers that peers claim
    are limited to `claim` times the median."""
    own, n = float(max(mine.samples, 1)), [float(max(o.samples, 1)) for o in group]
    return [own, *(n if claim is None or not n else bounded(n, claim, own))]
