from __future__ import annotations

from pfl_node.policies.local import Local
from pfl_node.steps import Report, Train
from tests.drive_policy import A, B, Hand, make, model


def test_local_trains_and_reports_and_talks_to_nobody() -> None:
    policy, hand = make(Local, rounds=3), Hand([A, B])
    hand.run(policy.main())
    assert [type(s) for s in hand.asked] == [Train, Report] * 3
    assert [s.round for s in hand.all(Report)] == [0, 1, 2]
    assert policy.model == model(3)


def test_local_does_not_wait_for_company() -> None:
    assert Local.solitary
    assert not Local.pushes()
