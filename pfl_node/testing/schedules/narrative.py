"""What happened in one schedule, for people: what was to go wrong, the story line by line, what was checked."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from pfl_node.sim.faults import Delay, Loss, Skew, Slow, in_text
from pfl_node.testing.schedules.rules import RULES
from pfl_node.testing.schedules.trial import Row, Trial

QUIET = frozenset({"sent", "taken", "refused", "lost", "kept_out"})  # one of many
TOLD_APART = frozenset({"time", "node", "event", "round"})
LONGEST = 100  # characters of what a line tells besides


def lines(trial: Trial) -> Iterator[str]:
    plan = trial.schedule
    yield f"seed {plan.seed}: {plan.policy}, {plan.nodes} nodes, {plan.rounds} rounds"
    yield f"knobs     {_pairs(plan.knobs) or 'none'}"
    yield f"settings  {_pairs(plan.told) or 'the defaults'}"
    yield f"faults    {' '.join(map(in_text, plan.faults)) or 'none'}"
    yield ""
    yield from story(trial)
    yield ""
    yield f"messages  {messages(trial.counts)}"
    yield from verdict(trial)


def story(trial: Trial) -> Iterator[str]:
    """The journal without its single messages, which are counted."""
    passed: Counter[str] = Counter()
    for row in _rows(trial):
        if row["event"] in QUIET:
            passed[row["event"]] += 1
            continue
        if passed:
            yield f"{'':>10}        … {', '.join(f'{n} {what}' for what, n in sorted(passed.items()))}"
            passed.clear()
        yield f"{row['time']:>10.3f}  {row['node'] or 'all':<5} {row['event']} {_said(row)}".rstrip()
    if passed:
        yield f"{'':>10}        … {', '.join(f'{n} {what}' for what, n in sorted(passed.items()))}"


def _rows(trial: Trial) -> list[Row]:
    """The journal's, and when faults begin and end that it does not tell of."""
    rows: list[Row] = [json.loads(line) for line in trial.journal]
    end = rows[-1]["time"] if rows else 0.0
    for fault in trial.schedule.faults:
        if isinstance(fault, Loss | Delay | Slow | Skew):
            for time, what in ((fault.at, "begins"), (fault.until, "ends")):
                if time <= end:
                    rows.append({"time": time, "node": None, "event": f"{in_text(fault)} {what}"})
    return sorted(rows, key=lambda row: float(row["time"]))


def messages(counts: Mapping[str, int]) -> str:
    shown = ("sent", "taken", "refused", "lost", "acknowledged", "delivered")
    told = [f"{counts.get(what, 0):,} {what}" for what in shown]
    rest = [what for what in sorted(counts) if what not in shown and _is_fate(what)]
    return ", ".join(told + [f"{counts[what]:,} {what}" for what in rest if counts[what]])


def _is_fate(what: str) -> bool:
    return what != "rounds" and not what.startswith("fault ")


def verdict(trial: Trial) -> Iterator[str]:
    if not trial.broken:
        checks = sum(trial.checked.values())
        yield f"holds     {len(trial.checked)} rules, looked at {checks:,} times"
    for finding in trial.broken:
        yield f"broken    {finding}"
        yield f"          the rule: {RULES[finding.rule]}"


def _said(row: Row) -> str:
    first = {"round": row["round"]} if "round" in row else {}
    text = _pairs(first | {key: value for key, value in row.items() if key not in TOLD_APART})
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _pairs(values: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={_value(value)}" for key, value in values.items())


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value) if isinstance(value, (str, int)) else json.dumps(value, separators=(",", ":"))
