"""The contract that every policy must keep, built-in or not: `check(Mine)`. Needs no torch; takes seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from pfl_node.plugin import explain
from pfl_node.policies.base import Policy
from pfl_node.testing.contract import source_rules, state_rules, swarm_rules
from pfl_node.testing.contract.harness import Broken, PolicyUnderTest
from pfl_node.testing.contract.small_config import alternatives, small

__all__ = [
    "QUICK",
    "RULES",
    "Broken",
    "PolicyUnderTest",
    "alternatives",
    "check",
    "findings",
    "small",
]

Rule = Callable[[PolicyUnderTest], None]


def _named(*rules: Rule) -> dict[str, Rule]:
    return {rule.__name__.replace("_", " "): rule for rule in rules}


# The fast rules; they are enough for the alternative values of knobs.
QUICK: dict[str, Rule] = {
    **_named(source_rules.it_asks_and_does_nothing_itself),
    **{f"works in a swarm of {n}": partial(swarm_rules.works_in_a_swarm_of, nodes=n) for n in (1, 2, 3)},
    **{
        f"answers may be anything: {m}": partial(state_rules.answers_may_be_anything, environment=m)
        for m in state_rules.ENVIRONMENTS
    },
    **_named(
        state_rules.the_state_survives_a_checkpoint,
        state_rules.a_snapshot_does_not_change_afterwards,
        state_rules.a_restored_policy_goes_on,
        state_rules.a_restored_policy_does_what_it_would_have_done,
    ),
}
RULES: dict[str, Rule] = {
    **QUICK,
    "works in a swarm of 20": partial(swarm_rules.works_in_a_swarm_of, nodes=20),
    **_named(
        swarm_rules.a_peer_may_die,
        swarm_rules.a_peer_may_be_slow,
        swarm_rules.a_peer_may_never_answer,
        swarm_rules.nobody_may_answer,
        swarm_rules.a_peer_may_join_late,
        swarm_rules.a_peer_may_join_when_all_is_over,
        swarm_rules.a_peer_may_restart_from_its_checkpoint,
        swarm_rules.a_restart_changes_nothing_for_a_node_alone,
        swarm_rules.messages_may_be_lost,
        swarm_rules.everything_may_go_wrong_at_once,
        swarm_rules.the_same_seed_gives_the_same_journal,
    ),
}


def check(policy: type[Policy], **knobs: Any) -> None:
    """Raises Broken with a line for each broken rule. Knobs that are not given get small values."""
    broken = {rule: error for rule, error in findings(policy, **knobs) if error}
    if broken:
        lines = (f"  {rule}: {explain(error).line}" for rule, error in broken.items())
        raise Broken("\n".join((f"{policy.__name__} does not keep the contract", *lines)))


def findings(policy: type[Policy], **knobs: Any) -> Iterator[tuple[str, Exception | None]]:
    """Each rule with the error that shows its violation, or None."""
    subject = PolicyUnderTest(policy, **knobs)
    for name, rule in RULES.items():
        try:
            rule(subject)
        except Exception as error:  # an exception in the policy breaks the rule too
            yield name, error
        else:
            yield name, None
