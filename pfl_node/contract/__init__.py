"""What every policy must hold, in the table or out of it: `check(Mine)`. Needs no torch; takes a few seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from pfl_node import plugin
from pfl_node.contract import byhand, source, swarms
from pfl_node.contract.knobs import alternatives, small
from pfl_node.contract.subject import Broken, Subject
from pfl_node.policies.base import Policy

__all__ = ["QUICK", "RULES", "Broken", "Subject", "alternatives", "check", "findings", "in_a_line", "small"]

Rule = Callable[[Subject], None]


def _named(*rules: Rule) -> dict[str, Rule]:
    return {rule.__name__.replace("_", " "): rule for rule in rules}


# Those that take next to no time; enough for the other things that a knob can be told.
QUICK: dict[str, Rule] = {
    **_named(source.it_asks_and_does_nothing_itself),
    **{f"works in a swarm of {n}": partial(swarms.works_in_a_swarm_of, nodes=n) for n in (1, 2, 3)},
    **{f"answers may be anything: {m}": partial(byhand.answers_may_be_anything, mood=m) for m in byhand.MOODS},
    **_named(
        byhand.the_state_survives_a_checkpoint,
        byhand.a_snapshot_does_not_change_afterwards,
        byhand.a_restored_policy_goes_on,
        byhand.a_restored_policy_does_what_it_would_have_done,
    ),
}
RULES: dict[str, Rule] = {
    **QUICK,
    "works in a swarm of 20": partial(swarms.works_in_a_swarm_of, nodes=20),
    **_named(
        swarms.a_peer_may_die,
        swarms.a_peer_may_be_slow,
        swarms.a_peer_may_never_answer,
        swarms.nobody_may_answer,
        swarms.a_peer_may_join_late,
        swarms.a_peer_may_join_when_all_is_over,
        swarms.a_peer_may_restart_from_its_checkpoint,
        swarms.a_restart_changes_nothing_for_a_node_alone,
        swarms.messages_may_be_lost,
        swarms.everything_may_go_wrong_at_once,
        swarms.the_same_seed_gives_the_same_journal,
    ),
}


def check(policy: type[Policy], **knobs: Any) -> None:
    """Raises Broken with a line for each rule that the policy breaks. Knobs that are not given are made small."""
    broken = {rule: error for rule, error in findings(policy, **knobs) if error}
    if broken:
        lines = (f"  {rule}: {in_a_line(error)}" for rule, error in broken.items())
        raise Broken("\n".join((f"{policy.__name__} does not keep the contract", *lines)))


def findings(policy: type[Policy], **knobs: Any) -> Iterator[tuple[str, Exception | None]]:
    """Each rule with what is wrong, one after the other."""
    subject = Subject(policy, **knobs)
    for name, rule in RULES.items():
        try:
            rule(subject)
        except Exception as error:  # whatever the policy raised is a rule broken
            yield name, error
        else:
            yield name, None


def in_a_line(error: Exception) -> str:
    return str(error) if isinstance(error, Broken) else f"{plugin.in_a_line(error)}{plugin.line_of(error)}"
