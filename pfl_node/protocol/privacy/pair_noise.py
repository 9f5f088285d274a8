"""Noise that cancels between neighbours, and how much independent noise a node needs in addition. Pure.

Based on Allouah et al. 2024, "The Privacy Power of Correlated Noise in Decentralized Learning" (DECOR): node i
adds v_ij to each gradient and its neighbour j adds -v_ij; both derive it from a secret that no other node has. In
addition, each node adds independent noise. Neighbouring data sets differ in the gradient of one node, by one
clipped sample. An observer of all messages is left with the part of node i's noise that the other messages do not
explain: its conditional variance, which is 1 / (S^-1)_ii for the covariance S of all nodes' noise. Poisson
sampling, composition and epsilon are those of DP-SGD with that much independent noise (`dp_account`).

# paper: its accountant takes the largest (S^-1)_ii of the whole graph; here: that of the node and its neighbours,
# without the colluders, as if the noise of all other pairs were known, because a node cannot check who else added
# noise in a round
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import sqrt

from pfl_node.settings.sections import PrivacySettings
from pfl_node.types import PeerId

SharedSecret = Callable[[PeerId], bytes | None]  # the secret shared with a peer; None: the peer has no key
PairSeeds = tuple[tuple[int, str], ...]  # for each neighbour: my sign, and the seed of the pair's noise


def no_secret(peer: PeerId) -> bytes | None:  # noqa: ARG001
    """A `SharedSecret` of nodes that add independent noise only."""
    return None


def pair_seeds(me: PeerId, peers: Iterable[PeerId], secret: SharedSecret, run: str, round: int) -> PairSeeds:
    """Both nodes of a pair get the same seed and opposite signs. A peer without a key is left out."""
    known = ((peer, found) for peer in sorted(set(peers) - {me}) if (found := secret(peer)) is not None)
    return tuple((1 if me < peer else -1, f"{found.hex()}/{run}/{round}") for peer, found in known)


def agreement(privacy: PrivacySettings, degree: int, batch: int, lr: float, duration: float) -> str:
    """The settings on which the account of a node relies at its neighbours, as a part of the seed of each pair's
    noise. Nodes with other settings add noise that does not cancel: accuracy suffers, and not privacy."""
    shares = (privacy.dp_noise, privacy.dp_clip, privacy.dp_pair_noise, privacy.dp_colluders)
    return "/".join(repr(float(n)) for n in (*shares, degree, batch, lr, duration))


def least_variance(pair: float, honest: int) -> float:
    """The independent variance that suffices for a node with this number of honest neighbours, relative to that of
    plain DP-SGD. `pair` is the standard deviation of a pair's noise, relative to dp_noise.

    It is the x with x + honest * masked_variance(pair, x) = 1.
    """
    a = pair**2
    b = a * (1 + honest) - 1
    root = sqrt(b * b + 4 * a)
    return 2 * a / (b + root) if b > 0 else (root - b) / 2  # without cancellation for a large `pair`


def masked_variance(pair: float, own: float) -> float:
    """The part of a pair's noise that the neighbour's message does not reveal, if the neighbour adds independent
    noise of the variance `own`: the variance of v given v + noise."""
    return pair**2 * own / (pair**2 + own)


def own_variance(pair: float, neighbours: int, colluders: int, degree: int, sensitivity: float = 1.0) -> float:
    """The independent variance that this node adds, relative to plain DP-SGD at the same epsilon.

    `degree` is the usual number of neighbours in the run. Every node adds at least what a node of that degree
    needs, so each neighbour masks at least that much; a node with fewer neighbours adds more. `sensitivity` is
    that of the mean gradient to one sample, in units of a node with full batches."""
    least = least_variance(pair, max(degree - colluders, 0))
    honest = max(neighbours - colluders, 0)
    return max(least, sensitivity**2 - honest * masked_variance(pair, least))
