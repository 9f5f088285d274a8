"""Describes the run of one schedule: its faults, its events line by line, and the rules it kept or broke."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from pfl_node.sim.faults import Delay, Loss, Skew, Slow, format_fault
from pfl_node.testing.schedules.rules import RULES
from pfl_node.testing.schedules.trial import Row, Trial

COUNTED = frozenset({"sent", "taken", "refused", "lost", "kept_out"})  # counted instead of printed
COLUMNS = frozenset({"time", "node", "event", "round"})
LONGEST = 100  # characters of the other data


def lines(trial: Trial) -> Iterator[str]:
    plan = trial.schedule
    yield f"seed {plan.seed}: {plan.policy}, {plan.nodes} nodes, {plan.rounds} rounds"
    yield f"knobs     {_pairs(plan.knobs) or 'none'}"
    yield f"settings  {_pairs(plan.settings) or 'the defaults'}"
    yield f"faults    {' '.join(map(format_fault, plan.faults)) or 'none'}"
    yield ""
    yield from events(trial)
    yield ""
    yield f"messages  {messages(trial.counts)}"
    yield from verdict(trial)


def events(trial: Trial) -> Iterator[str]:
    counts: Counter[str] = Counter()
    for row in _rows(trial):
        if row["event"] in COUNTED:
            counts[row["event"]] += 1
            continue
        if counts:
            yield _counted(counts)
            counts.clear()
        yield f"{row['time']:>10.3f}  {row['node'] or 'all':<5} {row['event']} {_data(row)}".rstrip()
    if counts:
        yield _counted(counts)


def _counted(counts: Counter[str]) -> str:
    return f"{'':>10}        … {', '.join(f'{n} {what}' for what, n in sorted(counts.items()))}"


def _rows(trial: Trial) -> list[Row]:
    """The journal, and the beginnings and ends of faults that are not in it."""
    rows: list[Row] = [json.loads(line) for line in trial.journal]
    end = rows[-1]["time"] if rows else 0.0
    for fault in trial.schedule.faults:
        if isinstance(fault, Loss | Delay | Slow | Skew):
            for time, what in ((fault.at, "begins"), (fault.until, "ends")):
                if time <= end:
                    rows.append({"time": time, "node": None, "event": f"{format_fault(fault)} {what}"})
    return sorted(rows, key=lambda row: float(row["time"]))


def messages(counts: Mapping[str, int]) -> str:
    shown = ("sent", "taken", "refused", "lost", "acknowledged", "delivered")
    first = [f"{counts.get(what, 0):,} {what}" for what in shown]
    rest = [what for what in sorted(counts) if what not in (*shown, "rounds") and not what.startswith("fault ")]
    return ", ".join(first + [f"{counts[what]:,} {what}" for what in rest if counts[what]])


def verdict(trial: Trial) -> Iterator[str]:
    if not trial.broken:
        checks = sum(trial.checked.values())
        yield f"holds     {len(trial.checked)} rules, checked {checks:,} times"
    for violation in trial.broken:
        yield f"broken    {violation}"
        yield f"          the rule: {RULES[violation.rule]}"


def _data(row: Row) -> str:
    first = {"round": row["round"]} if "round" in row else {}
    text = _pairs(first | {key: value for key, value in row.items() if key not in COLUMNS})
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _pairs(values: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={_value(value)}" for key, value in values.items())


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value) if isinstance(value, (str, int)) else json.dumps(value, separators=(",", ":"))
