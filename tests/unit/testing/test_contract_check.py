"""The contract check: a good policy passes, and each kind of bad one fails."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field

from pfl_node import plugin
from pfl_node.errors import ConfigError, LayoutMismatch, SimulationStuck, StoreError
from pfl_node.policies.base import Policy, PolicyConfig
from pfl_node.testing.contract import RULES, Broken, PolicyUnderTest, alternatives, check, findings, small
from tests.unit.testing import bad_policies
from tests.unit.testing.good_policy import Good

BAD: list[tuple[type[Policy], str, type[Exception], str]] = [
    (bad_policies.NeedsOne, "works in a swarm of 1", IndexError, "tuple index out of range"),
    (bad_policies.NeedsOne, "answers may be anything: nobody", IndexError, "tuple index out of range"),
    (
        bad_policies.NeedsThree,
        "works in a swarm of 2",
        SimulationStuck,
        "no round was finished for 3600 s: n000 waits for Receive",
    ),
    (
        bad_policies.NeedsThree,
        "answers may be anything: silent",
        Broken,
        "it has not ended after 20000 steps, in round 0",
    ),
    (bad_policies.Spins, "works in a swarm of 1", SimulationStuck, "n000 took 100000 steps without waiting"),
    (bad_policies.Leaves, "works in a swarm of 3", Broken, "n000 did not finish: it is left in round 0"),
    (bad_policies.Backwards, "works in a swarm of 3", Broken, r"n000 reported its rounds in the order \[7, 6, 5"),
    (bad_policies.Backwards, "answers may be anything: some", Broken, "in round 0 it reported round 7"),
    (bad_policies.Diverges, "works in a swarm of 3", Broken, "the model of n000 is not finite after its rounds"),
    (bad_policies.Diverges, "answers may be anything: nobody", Broken, "its final model is not finite"),
    (bad_policies.CorrectsParts, "works in a swarm of 1", LayoutMismatch, r"a Train with Model\(core, 3 numbers"),
    (bad_policies.Misspells, "works in a swarm of 1", ConfigError, "there is no 'distance'"),
    (
        bad_policies.SendsParts,
        "works in a swarm of 3",
        LayoutMismatch,
        r"a Send of a core, but .* takes = \('model'",
    ),
    (bad_policies.SendsParts, "answers may be anything: some", Broken, r"it sent core, but takes \('model',\)"),
    (bad_policies.Dices, "the same seed gives the same journal", Broken, 'same seed differ, line .*"eyes"'),
    (
        bad_policies.Dices,
        "it asks and does nothing itself",
        Broken,
        r"uses random.random: a policy draws from self.rng only",
    ),
    (bad_policies.Vandal, "answers may be anything: all", Broken, "it modified the vector of a model"),
    (bad_policies.Trusts, "answers may be anything: all", IndexError, "list index out of range"),
    (
        bad_policies.Forgets,
        "a restart changes nothing for a node alone",
        Broken,
        "restarts after round 0 ends with another model",
    ),
    (
        bad_policies.ForgetsOthers,
        "a restored policy does what it would have done",
        Broken,
        "restored after round 0 it behaves differently",
    ),
    (
        bad_policies.ForgetsItsMessages,
        "a restored policy does what it would have done",
        Broken,
        "restored after round 0 it behaves differently",
    ),
    (bad_policies.KeepsTooMuch, "the state survives a checkpoint", StoreError, "a policy keeps a Random"),
    (
        bad_policies.KeepsStrangeThings,
        "the state survives a checkpoint",
        Broken,
        "counts: a defaultdict became a dict",
    ),
    (bad_policies.Silent, "works in a swarm of 1", Broken, "n000 finished without a round"),
    (bad_policies.Silent, "a peer may die", Broken, "no round was reported, even without faults"),
    (bad_policies.Lives, "a snapshot does not change afterwards", Broken, "the snapshot of round 0 changed"),
]


def test_a_policy_of_anybody_is_checked_with_one_call() -> None:
    check(Good, m=1)
    assert [rule for rule, error in findings(Good) if not error] == list(RULES)


@pytest.mark.parametrize(("policy", "rule", "error", "says"), BAD)
def test_a_bad_policy_is_found_out(policy: type[Policy], rule: str, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        RULES[rule](PolicyUnderTest(policy))


def test_what_is_wrong_is_a_line_for_each_rule() -> None:
    with pytest.raises(Broken) as caught:
        check(bad_policies.Leaves)
    first, *lines = str(caught.value).splitlines()
    assert first == "Leaves does not keep the contract"
    assert "  works in a swarm of 1: n000 did not finish: it is left in round 0" in lines
    assert len(lines) == len(set(lines)) > 10


def test_a_failure_is_told_with_its_line() -> None:
    with pytest.raises(
        Broken, match=r"works in a swarm of 1: your code failed \(bad_policies.py, line \d+\): IndexError: .*"
    ):
        check(bad_policies.NeedsOne)


ACTS = """
import asyncio, time
from numpy.random import normal
from pfl_node.policies.local import Local

class Acts(Local):
    pass
"""


@pytest.fixture
def acts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("sys.path", [*sys.path])
    (tmp_path / "acts.py").write_text(ACTS)
    return plugin.load("policy", f"{tmp_path}/acts.py:Acts", ConfigError)


def test_a_file_that_acts_by_itself_is_found_out(acts: type[Policy]) -> None:
    with pytest.raises(Broken, match=r"acts\.py imports asyncio, time: a policy acts through steps only"):
        RULES["it asks and does nothing itself"](PolicyUnderTest(acts))


PENALISES = """
from pfl_node.policies.el import El
from pfl_node.steps import Train


class Penalises(El):
    async def learn(self):
        self.model = await Train(self.model, penalty=f"{__file__}:distance")


def distance(model, batch, output, anchors):
    import torch.nn.functional as F
    return F.mse_loss(output, output.detach())
"""


def test_a_penalty_in_the_file_of_the_policy_may_import_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.path", [*sys.path])
    (tmp_path / "penalises.py").write_text(PENALISES)
    (tmp_path / "torches.py").write_text(PENALISES + "\n\nimport torch.nn.functional\n")
    good, bad = (
        plugin.load("policy", f"{tmp_path}/{name}.py:Penalises", ConfigError) for name in ("penalises", "torches")
    )
    rule = RULES["it asks and does nothing itself"]
    rule(PolicyUnderTest(good))
    with pytest.raises(Broken, match=r"torches\.py imports torch\.nn\.functional: a policy acts through steps"):
        rule(PolicyUnderTest(bad))


# -- knobs -----------------------------------------------------------------------------------------------------


class Knobs(Good):
    class Config(PolicyConfig):
        few: int = 2
        many: int = Field(200, ge=1)
        more: int = Field(333, ge=1)
        at_least: int = Field(100, ge=50)
        delta: float = Field(1.0, gt=0, description="seconds between two sends")
        eps: float = Field(0.5, ge=0, le=1)
        on: bool = False
        limit: int | None = Field(None, ge=1)
        words: Any = "a"


def test_knobs_are_made_small_and_keep_their_order() -> None:
    assert small(Knobs) == {"many": 6, "more": 6, "at_least": 50}
    assert small(Knobs, real_time=True) == {"many": 6, "more": 6, "at_least": 50, "delta": 0.1}
    assert PolicyUnderTest(Knobs, many=7).options["many"] == 7


def test_alternatives_are_what_else_a_knob_can_be_told() -> None:
    assert list(alternatives(Knobs)) == [{"eps": 0.0}, {"on": True}, {"limit": 2}]


def test_a_knob_that_does_not_exist_is_one_line() -> None:
    with pytest.raises(ConfigError, match=r"policy\.n is not a knob of Good: known: m"):
        check(Good, n=1)
