"""The attack on messages whose noise is correlated."""

from __future__ import annotations

from math import sqrt
from statistics import NormalDist

import pytest

from pfl_node.lab.audit.audit import attack_messages, gaussian_bound
from pfl_node.lab.audit.message_attack import ALONE, EAVESDROPPER, NEIGHBOUR, Attacker, NoisyExchange
from pfl_node.settings import Settings

SETTINGS = Settings.model_validate(
    {
        "policy": {"name": "dpsgd", "degree": 3},
        "privacy": {"dp": True, "dp_correlated": True, "dp_noise": 0.5},
        "train": {"steps": 1, "batch": 16},
        "task": {"samples": 16},
        "rounds": 10,
    }
)


def test_more_messages_and_more_secrets_leave_less_noise() -> None:
    game = NoisyExchange(SETTINGS, 4, 3)
    alone, all_messages, neighbour = (game.noise(a)[0] for a in (ALONE, EAVESDROPPER, NEIGHBOUR))
    nobody_left = game.noise(Attacker("all", neighbours=3))[0]
    assert alone > all_messages > neighbour >= 1 > nobody_left
    assert nobody_left == pytest.approx(sqrt(game.own[0]))


def test_the_attack_reaches_its_bound_and_not_more() -> None:
    """Against each attacker the real noise of real learners is as large as the account says."""
    found = list(attack_messages(SETTINGS, 4, 60))
    assert [f.control for f in found] == ["one message", "eavesdropper", "neighbour", "all neighbours"]
    for finding in found:
        assert finding.at_most
        assert finding.found.auc == pytest.approx(
            finding.at_most.auc, abs=0.08
        )  # 60 attempts leave so much to chance
    spent = [f.epsilon or 0.0 for f in found]
    assert spent == sorted(spent)
    assert spent[0] < spent[3]


def test_the_bound_of_gaussian_noise_is_that_of_two_normal_distributions() -> None:
    assert gaussian_bound(1.0).auc == pytest.approx(NormalDist(sigma=sqrt(2)).cdf(1))
    assert gaussian_bound(100.0).auc == pytest.approx(0.5, abs=0.003)
    assert gaussian_bound(100.0).tpr == pytest.approx(0.01, abs=0.001)
