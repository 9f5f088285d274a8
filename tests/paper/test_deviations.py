"""Where a policy differs from its paper, its file says so: `# paper: ...; here: ..., because ...`."""

from __future__ import annotations

import inspect
import re

import pytest

from pfl_node.policies import POLICIES

DEVIATION = re.compile(r"# paper: [^;]+(;[^;]+)*; here: .+ because ")
WITHOUT_PAPER = {"bandit"}  # described in docs/algorithms.md


@pytest.mark.parametrize("name", [name for name in POLICIES if name not in WITHOUT_PAPER])
def test_a_policys_file_names_its_deviations(name: str) -> None:
    module = inspect.getmodule(POLICIES[name])
    assert module is not None
    comments = re.sub(r"\n\s*# (?!paper:)", " ", inspect.getsource(module))  # a comment of several lines is one
    found = [line for line in comments.splitlines() if "# paper:" in line]
    assert found
    assert all(DEVIATION.search(line) for line in found), found
