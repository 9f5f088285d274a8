"""Every policy in POLICIES meets the contract, also with other values of its options."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pfl_node.policies import POLICIES
from pfl_node.testing.contract import QUICK, RULES, PolicyUnderTest, alternatives
from pfl_node.testing.contract.swarm_rules import many_faults

ROOT = Path(__file__).resolve().parents[2]
KNOBS = [(name, knob) for name, policy in POLICIES.items() for knob in alternatives(policy)]


@cache
def subject(name: str) -> PolicyUnderTest:
    return PolicyUnderTest(POLICIES[name])


def told(value: Any) -> str | None:
    return "-".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else None


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_keeps_the_contract(name: str, rule: str) -> None:
    RULES[rule](subject(name))


@pytest.mark.parametrize(("name", "knob"), KNOBS, ids=told)
def test_every_policy_keeps_it_whatever_a_knob_is_told(name: str, knob: dict[str, Any]) -> None:
    """Runs the fast rules only."""
    changed = PolicyUnderTest(POLICIES[name], **knob)
    for rule in QUICK.values():
        rule(changed)


def digests() -> dict[str, str]:
    """Digests of the journals of all policies in a run with many faults."""
    journals = {name: subject(name).run(faults=many_faults(subject(name))).journal for name in POLICIES}
    return {name: hashlib.sha256(journal).hexdigest() for name, journal in journals.items()}


def test_no_policys_journal_depends_on_the_process() -> None:
    """Python randomises string hashes per process; results must not depend on them."""
    code = "from tests.unit.testing.test_contract_policies import digests; print(digests())"
    env = {**os.environ, "PYTHONHASHSEED": "7"}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.stdout.strip() == str(digests()), done.stderr
