"""The attack on messages whose noise is correlated."""

from __future__ import annotations

from math import sqrt
from pathlib import Path
from statistics import NormalDist
from typing import Any

import pytest

from pfl_node.lab.audit.audit import attack_messages, gaussian_bound
from pfl_node.lab.audit.message_attack import ALONE, EAVESDROPPER, NEIGHBOUR, Attacker, NoisyExchange
from pfl_node.policies.topology import rings
from pfl_node.protocol.privacy.pair_noise import own_variance
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


def with_policy(**options: Any) -> Settings:
    return Settings.model_validate(SETTINGS.model_dump() | {"policy": {"name": "dpsgd"} | options})


def test_more_messages_and_more_secrets_leave_less_noise() -> None:
    game = NoisyExchange(SETTINGS, 4)
    alone, all_messages, neighbour = (game.noise(a)[0] for a in (ALONE, EAVESDROPPER, NEIGHBOUR))
    nobody_left = game.noise(Attacker("all", neighbours=3))[0]
    assert alone > all_messages > neighbour >= 1 > nobody_left
    assert nobody_left == pytest.approx(sqrt(game.own[0]))


@pytest.mark.parametrize(("graph", "degree"), [("ring", 2), ("regular", 4)])
def test_the_graph_is_that_of_the_policy(graph: str, degree: int) -> None:
    settings = with_policy(graph=graph, degree=4)
    game = NoisyExchange(settings, 9)
    assert game.degree == degree
    assert game.graph == rings(tuple(game.ids), degree, settings.seed)


def test_the_graph_of_a_file_may_leave_out_nodes(tmp_path: Path) -> None:
    (tmp_path / "edges").write_text("0 1\n1 2\n2 0\n")
    game = NoisyExchange(with_policy(graph=str(tmp_path / "edges")), 4)
    assert {id: len(near) for id, near in game.graph.items()} == {"n000": 2, "n001": 2, "n002": 2, "n003": 0}


def test_the_assumed_coalition_leaves_at_least_the_noise_that_is_accounted() -> None:
    """Of the nodes that are no neighbours, any number may collude."""
    game = NoisyExchange(with_policy(degree=4), 9)
    one, assumed = (game.noise(Attacker("x", neighbours=1, others=all))[0] for all in (False, True))
    assert len(game.colluders(Attacker("x", neighbours=1, others=True))) == 1 + 4
    assert one > assumed >= 1


def test_with_fewer_samples_than_a_batch_a_node_adds_more_noise() -> None:
    game = NoisyExchange(SETTINGS, 4, [0.5, 1.0, 1.0, 1.0])
    assert game.own[0] == pytest.approx(own_variance(0.7, 3, 1, 3, 2.0))
    assert game.noise(NEIGHBOUR)[0] >= 1 - 1e-9


@pytest.mark.parametrize("batch", [16, 24], ids=["full batch", "fewer samples than a batch"])
def test_the_attack_reaches_its_bound_and_not_more(batch: int) -> None:
    """Against each attacker the real noise of real learners is as large as the account says."""
    settings = SETTINGS.model_copy(update={"train": SETTINGS.train.model_copy(update={"batch": batch})})
    found = list(attack_messages(settings, 4, 60))
    names = ["one message", "eavesdropper", "neighbour", "1 neighbour, all others", "all neighbours"]
    assert [f.control for f in found] == names
    for finding in found:
        assert finding.at_most
        assert finding.found.auc == pytest.approx(
            finding.at_most.auc, abs=0.08
        )  # 60 attempts leave so much to chance
    spent = [f.epsilon or 0.0 for f in found]
    assert spent == sorted(spent)
    assert spent[3] <= (found[3].reported or 0.0) * (1 + 1e-9) < spent[4]


def test_the_bound_of_gaussian_noise_is_that_of_two_normal_distributions() -> None:
    assert gaussian_bound(1.0).auc == pytest.approx(NormalDist(sigma=sqrt(2)).cdf(1))
    assert gaussian_bound(100.0).auc == pytest.approx(0.5, abs=0.003)
    assert gaussian_bound(100.0).tpr == pytest.approx(0.01, abs=0.001)
