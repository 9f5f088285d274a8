"""The first tables of docs/results.md: the claims counted by paper, and by experiment."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from pfl_node.lab.publish.paper_groups import OURS, group, group_of, order, shipped, table_of
from pfl_node.lab.publish.records import RecordedRow, ResultRecord, seeds_of
from pfl_node.lab.report import phrases
from pfl_node.lab.report.result_table import markdown_table

COUNTED = (phrases.HOLDS, phrases.UNDECIDED, phrases.CONTRADICTED)
SEVERAL = 3  # seeds
UNITS = (" nodes", " rounds")  # ends of the differences in size


def by_paper(records: Sequence[ResultRecord]) -> str:
    """Of a claim that several records test, each counts."""
    kept = {record.experiment for record in records}
    open_claims: Counter[str] = Counter()
    experiments: Counter[str] = Counter()
    for name, found in shipped():
        of = group(found.paper, found.claim)
        experiments[of] += 1
        if name not in kept:
            open_claims[of] += sum(claim.only != "quick" for claim in found.claim)
    heads = ("paper", "experiments", f"with {SEVERAL} seeds or more", *COUNTED, "one seed", "not run")
    rows: list[Sequence[str]] = [heads]
    for name in sorted(experiments.keys() | set(map(group_of, records)), key=order):
        mine = [record for record in records if group_of(record) == name]
        several = {record.experiment for record in mine if len(seeds_of(record)) >= SEVERAL}
        total = experiments[name] if name != OURS else len({record.experiment for record in mine})
        counts = count(mine)
        missing = open_claims[name] + counts[phrases.NOT_MEASURED]
        numbers = (total, len(several), *(counts[kind] for kind in COUNTED), _single(counts), missing)
        rows.append((name, *map(str, numbers)))
    return markdown_table(rows)


def by_experiment(records: Sequence[ResultRecord]) -> str:
    rows: list[Sequence[str]] = [("experiment", "repeats", "size", "seeds", *COUNTED, "one seed")]
    for record in records:
        counts = count([record])
        numbers = (len(seeds_of(record)), *(counts[kind] for kind in COUNTED), _single(counts))
        rows.append((f"[{record.name}]", table_of(record), size(record), *map(str, numbers)))
    links = "\n".join(f"[{record.name}]: #{anchor(record.name)}" for record in records)
    return f"{markdown_table(rows, words_first=3)}\n\n{links}"


def count(records: Sequence[ResultRecord]) -> Mapping[str, int]:
    """The number of claims by judgement."""
    return Counter(phrases.judgement(claim.verdict) for record in records for claim in record.claims)


def _single(counts: Mapping[str, int]) -> int:
    return counts[phrases.ONE_SEED] + counts[phrases.ONE_SEED_AGAINST]


def size(record: ResultRecord) -> str:
    """How the size differs from the paper's, or, without a paper, the size."""
    if group_of(record) == OURS:
        return "; ".join(dict.fromkeys(map(plain_size, record.rows)))
    if not any(row.differences for row in record.rows):
        return "the paper's"
    other = any(not is_size(text) for row in record.rows for text in row.differences)
    return "; ".join([*sizes(record), *(["other settings"] if other else [])])


def sizes(record: ResultRecord) -> list[str]:
    """How the numbers of nodes and rounds differ from the paper's. Where they are several, the record's own table
    has them."""
    found = dict.fromkeys(text for row in record.rows for text in row.differences if is_size(text))
    units = {unit: [text for text in found if text.endswith(unit)] for unit in UNITS}
    return [texts[0] if len(texts) == 1 else f"several numbers of{unit}" for unit, texts in units.items() if texts]


def plain_size(row: RecordedRow) -> str:
    rounds = phrases.plural(row.rounds, "round") if row.rounds else "no limit of rounds"
    return f"{phrases.plural(row.nodes, 'node')}, {rounds}"


def is_size(difference: str) -> bool:
    return difference.endswith(UNITS)


def anchor(heading: str) -> str:
    """The anchor that GitHub makes for a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
