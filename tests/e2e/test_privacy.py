"""Real nodes with the privacy controls: real gRPC, real training on digits, all in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pfl_node.daemon.tls_setup import check_pair_keys
from pfl_node.errors import ConfigError, Reason, Refused
from pfl_node.ops.prometheus import FIGURES
from pfl_node.ops.status import details_of
from pfl_node.settings import Settings, WireSettings
from pfl_node.types import Eval, PeerId
from pfl_node.wire.client import PeerClient
from tests.e2e.in_process import Life, Town, play
from tests.identities import Site

ORACLE = {"oracle": True, "oracle_epsilon": 0.1, "oracle_budget": 0.2, "oracle_total": 10.0}
ENDLESS: dict[str, Any] = {"policy": {"name": "greedy"}, "train": {"steps": 10_000_000}}


def figure(life: Life, name: str) -> list[float]:
    (found,) = (f for f in FIGURES if f.name == name)
    return [value for _, value in found.read(life.node)]


async def asked(life: Life, name: str, shifts: list[float]) -> list[float | str]:
    """The losses that a peer is told of the node's model, moved a little; or why it is told none."""
    policy = life.node.policy
    assert policy
    life.node.host.member = lambda _: True  # whoever asks counts as a member
    peer = PeerClient(PeerId(name), life.node.settings.run, WireSettings())
    found: list[float | str] = []
    for shift in shifts:
        model = type(policy.model)(policy.model.layout, policy.model.vector * 0 + shift)
        try:
            found.append((await peer.evaluate(life.node.id, life.address, model)).loss)
        except Refused as refused:
            found.append(str(refused.reason))
    await peer.close()
    return found


def test_a_peer_is_refused_by_name_after_its_budget_also_after_a_restart(tmp_path: Path) -> None:
    async def scene(town: Town) -> None:
        life = await (await town.runs("n", privacy=ORACLE, **ENDLESS)).trains()
        first = await asked(life, "you", [0.1, 0.1, 0.2, 0.3])
        assert first[0] == first[1]
        assert isinstance(first[2], float)
        assert first[2:] == [first[2], Reason.BUDGET]
        assert details_of(life.node)["privacy"]["oracle"]["spent"] == {"you": 0.2}
        assert details_of(life.node)["refused"] == {"budget": 1}
        third = await asked(life, "third", [0.1])
        assert third == first[:1]  # and it has paid
        await life.close()

        again = await (await town.runs("n", privacy=ORACLE, **ENDLESS)).trains()
        assert await asked(again, "you", [0.1]) == [Reason.BUDGET]
        assert await asked(again, "third", [0.1]) == third  # of the same model the same
        assert details_of(again.node)["privacy"]["oracle"]["spent"] == {"third": 0.1, "you": 0.2}

    play(tmp_path, scene)


TABLE = """
import torch
from torch import nn

def table():
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    own = {"metrics": {"mine": lambda outputs, y: float(outputs.mean()) + 5.0}, "best": "mine"}
    return {"model": lambda: nn.Linear(3, 2), "train": (x, (x[:, 0] > 0).long()), **own}
"""


@pytest.mark.parametrize(
    ("privacy", "told"),
    [({}, True), (ORACLE, False), ({**ORACLE, "oracle_tells": "both"}, False), ({"dp": True}, None)],
)
def test_no_metric_of_the_task_leaves_a_node_whose_answers_are_private(
    tmp_path: Path, privacy: dict[str, Any], told: bool | None
) -> None:
    """A metric over a whole split has no bound for a single sample. With DP-SGD alone, nothing is answered."""
    (tmp_path / "table.py").write_text(TABLE)

    async def scene(town: Town) -> None:
        life = await town.runs("n", privacy=privacy, task={"name": f"{tmp_path / 'table.py'}:table"}, **ENDLESS)
        await life.trains()
        policy = life.node.policy
        assert policy
        life.node.host.member = lambda _: True
        peer = PeerClient(PeerId("you"), life.node.settings.run, WireSettings())
        found: Eval | Reason
        try:
            found = await peer.evaluate(life.node.id, life.address, policy.model)
        except Refused as refused:
            found = refused.reason
        await peer.close()
        if told is None:
            assert found is Reason.NOT_SERVED
        else:
            assert isinstance(found, Eval)
            assert (found.score is not None, found.metrics) == (told, {})

    play(tmp_path, scene)


def test_who_asks_goes_on_with_what_it_was_told(tmp_path: Path) -> None:
    async def scene(town: Town) -> None:
        common: dict[str, Any] = {
            "policy": {
                "name": "pens_pull",
                "selection_rounds": 4,
                "n_samplings": 2,
                "m_sample": 2,
                "m_selected": 1,
            },
            "rounds": 6,
            "lab": True,
            "start": {"peers": 2, "wait": 30.0},
            "privacy": ORACLE,
        }
        lives: list[Life] = []
        for index in range(3):
            task = {"samples": 40, "index": index, "nodes": 3}
            seeds = [lives[0].address] if lives else []
            lives.append(await town.runs(f"n{index}", task=task, peer_seed=seeds, **common))
        assert [await life.ends() for life in lives] == ["done"] * 3
        for life in lives:
            failed = details_of(life.node)["failed_calls"]
            assert failed["EvaluateModel budget"] > 0
            (chosen,) = life.rows("neighbours")
            assert chosen["ids"]
            spent = details_of(life.node)["privacy"]["oracle"]["spent"]
            assert set(spent) == {other.node.id for other in lives if other is not life}
            assert all(epsilon <= 0.2 + 1e-9 for epsilon in spent.values())
            assert [row["round"] for row in life.rows("round")] == list(range(6))

    play(tmp_path, scene)


def test_what_dp_sgd_spends_is_told_and_goes_on_after_a_restart(tmp_path: Path) -> None:
    dp = {"dp": True, "dp_noise": 2.0}

    async def scene(town: Town) -> None:
        life = await town.runs("n", privacy=dp, policy={"name": "local"}, rounds=2)
        assert await life.ends() == "done"
        spent = [row["dp_epsilon"] for row in life.rows("round")]
        assert 0 < spent[0] < spent[1]
        assert details_of(life.node)["privacy"]["dp"]["epsilon"] == spent[1]
        assert figure(life, "pfl_node_dp_epsilon") == [pytest.approx(spent[1], abs=1e-6)]
        await life.close()
        again = await town.runs("n", privacy=dp, policy={"name": "local"}, rounds=3)
        assert await again.ends() == "done"
        (more,) = (row["dp_epsilon"] for row in again.rows("round"))
        assert more > spent[1]

    play(tmp_path, scene)


CORRELATED: dict[str, Any] = {
    "policy": {"name": "dpsgd", "degree": 2},
    "rounds": 4,
    "train": {"steps": 2, "batch": 40, "lr": 1.0},
    # The gradients vanish beside the noise, and the noise of a node beside that of its pairs.
    "privacy": {"dp": True, "dp_clip": 1e-6, "dp_noise": 1e6, "dp_correlated": True, "dp_pair_noise": 100.0},
    "start": {"peers": 2, "wait": 60},
    "tls": {"on": True},
}


def test_the_noise_of_neighbours_with_tls_cancels_and_a_restarted_node_has_new_keys(tmp_path: Path) -> None:
    site, names = Site(tmp_path), ("ann", "bob", "carl")
    for name in names:
        site.member(name)
    sent: dict[str, list[Any]] = {name: [] for name in names}

    def watched(life: Life) -> None:
        send = life.node.client.send

        async def sends(peer: PeerId, address: str, model: Any, **more: Any) -> int:
            sent[life.node.name].append(model.vector)
            return await send(peer, address, model, **more)

        life.node.client.send = sends  # type: ignore[method-assign]

    async def scene(town: Town) -> None:
        lives: list[Life] = []
        for name in names:
            seeds = [lives[0].address] if lives else []
            lives.append(await town.listens(name, peer_seed=seeds, **CORRELATED))
            watched(lives[-1])
            lives[-1].begin()
        assert [await life.ends() for life in lives] == ["done"] * 3
        start = lives[0].node.policy
        assert start
        own = 1e-6 * 1e6 / 40  # the noise of a step of DP-SGD
        for life in lives:
            assert [row["dp_partners"] for row in life.rows("round")] == [2] * 4
            assert details_of(life.node)["privacy"]["dp"]["partners"] == 2
            policy = life.node.policy
            assert policy
            first = sent[life.node.name][0]
            assert first.std() > 50 * own  # on its way
            assert policy.model.vector.std() < 10 * own  # in the mean of all
        carl = lives[2].node.pair_keys
        assert carl
        await lives[2].close()
        again = await town.listens("carl", **CORRELATED)
        keys = again.node.pair_keys
        assert keys
        assert keys.public != carl.public

    play(tmp_path, scene)


def test_a_daemon_without_tls_refuses_to_share_noise() -> None:
    with pytest.raises(ConfigError, match=r"privacy\.dp_correlated needs TLS"):
        check_pair_keys(Settings.model_validate({**CORRELATED, "tls": {}}))
    check_pair_keys(Settings.model_validate(CORRELATED))
