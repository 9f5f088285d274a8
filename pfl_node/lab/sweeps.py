"""Sweeps of the command line: `--sweep train.lr=0.01,0.03,0.1` repeats all runs with each value. Several sweeps
make a grid."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from pfl_node.errors import ConfigError
from pfl_node.settings.schema import NAMED

NODES = "nodes"  # a key of a spec that is not a setting
PART = re.compile(r"""(?:[^,\[\]{}"']|\[[^\]]*\]|\{[^}]*\}|"[^"]*"|'[^']*')+""")  # no comma in brackets or quotes


@dataclass(frozen=True, slots=True)
class Combination:
    """One value of each sweep; without sweeps, there is one empty combination."""

    label: str = ""
    sets: tuple[str, ...] = ()  # as KEY=VALUE
    nodes: int | None = None


def combinations(sweeps: Sequence[str]) -> list[Combination]:
    parsed = [parse(text) for text in sweeps]
    keys = [key for key, _ in parsed]
    if double := next((key for key in keys if keys.count(key) > 1), None):
        raise ConfigError(f"two --sweep {double}: give all its values in one")
    return [_combination(keys, values) for values in product(*(values for _, values in parsed))]


def parse(text: str) -> tuple[str, list[str]]:
    """The key and the values as written."""
    key, equals, rest = text.partition("=")
    values = [value.strip() for value in PART.findall(rest)]
    whole = PART.sub("V", rest) == ",".join("V" * len(values)) and all(values)
    if not key.strip() or not equals or not whole or len(values) < 2:
        raise ConfigError(f"--sweep {text}: it should be KEY=VALUE,VALUE,…, such as train.lr=0.01,0.1")
    parsed = [_number(value) for value in values]
    if double := next((value for value in values if parsed.count(_number(value)) > 1), None):
        raise ConfigError(f"--sweep {text}: {double} is there twice")
    return key.strip(), values


def _number(value: str) -> float | str:
    try:
        return float(value)
    except ValueError:
        return value


def keys_of(sweeps: Sequence[str]) -> list[str]:
    """The keys of sweeps, sorted, with the full names of settings: `policy` means `policy.name`."""
    keys = (parse(text)[0] for text in sweeps)
    return sorted(f"{key}.name" if key in NAMED else key for key in keys)


def _combination(keys: Sequence[str], values: Sequence[str]) -> Combination:
    label = ", ".join(f"{key} = {value}" for key, value in zip(keys, values, strict=True))
    pairs = dict(zip(keys, values, strict=True))
    nodes = pairs.pop(NODES, None)
    if nodes is not None and not (nodes.isdecimal() and int(nodes)):
        raise ConfigError(f"--sweep nodes: {nodes} is not a positive integer")
    return Combination(label, tuple(f"{k}={v}" for k, v in pairs.items()), None if nodes is None else int(nodes))
