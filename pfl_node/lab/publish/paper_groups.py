"""Groups experiments by the paper whose tables they repeat."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from pfl_node.lab import spec
from pfl_node.lab.experiment import Claim
from pfl_node.lab.publish.records import ResultRecord
from pfl_node.lab.spec_schema import PolicyOrder, Spec

OWN = "no paper"  # how the `paper` of our own experiments begins
OURS = "Experiments of our own"
NO_FIGURES = "Settings without figures in a paper"
PAPER = re.compile(r"[A-Z][^()]*\([^)]*\)")  # authors, year and a name in parentheses


def group(paper: str, claims: Iterable[Claim | PolicyOrder]) -> str:
    """The paper without table and figure numbers."""
    if paper.startswith(OWN):
        return OURS
    if (stated := [not claim.ours for claim in claims]) and not any(stated):
        return NO_FIGURES
    found = PAPER.search(paper)
    return found.group() if found else paper


def group_of(record: ResultRecord) -> str:
    return group(record.paper, [claim.claim for claim in record.claims])


def order(name: str) -> tuple[int, str]:
    """Papers by author, then what no paper has."""
    return ([NO_FIGURES, OURS].index(name) + 1 if name in (NO_FIGURES, OURS) else 0, name)


def table_of(record: ResultRecord) -> str:
    """The tables and figures of the paper that it repeats, or what it takes from the papers that it names."""
    found = [*PAPER.finditer(record.paper)]
    if group_of(record) == OURS or not found:
        return record.paper
    last = found[-1 if group_of(record) == NO_FIGURES else 0]
    return record.paper[last.end() :].lstrip(", ") or record.paper


def shipped() -> Iterator[tuple[str, Spec]]:
    """The shipped experiments that are not of our own."""
    for name in spec.shipped():
        found = spec.parse(*spec.read(name))
        if not found.paper.startswith(OWN):
            yield name, found
