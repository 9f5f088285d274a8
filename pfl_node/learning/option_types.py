"""Parse the options of a task as users write them; an error is one line that names the option."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from pfl_node.errors import ConfigError, nearest


def whole(name: str, value: Any, least: int = 1) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"task.{name} = {value!r} is not a whole number from {least} on")
    return value


def positive(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ConfigError(f"task.{name} = {value!r} is not a number above zero")
    return float(value)


def amount(name: str, value: Any, of: int) -> int:
    """The number of samples out of `of`; the option is a share below 1, or a number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < of:
        raise ConfigError(f"task.{name} = {value!r} is neither a share from 0 to below 1 nor a number below {of}")
    if value >= 1 and value != int(value):
        raise ConfigError(f"task.{name} = {value!r}: a number of samples must be whole")
    return int(value) if value >= 1 else round(value * of)


def word(name: str, value: Any, known: Iterable[str]) -> str:
    if value not in (names := list(known)):
        raise ConfigError(f"task.{name} = {value!r}: there is no such name; {nearest(str(value), names)}")
    return str(value)


def several(name: str, value: Any) -> list[Any]:
    """A list; a command line may give it as `14,6`."""
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",")]
    values = list(value) if isinstance(value, Sequence) else [value]
    if not values:
        raise ConfigError(f"task.{name} is empty")
    return values


def wholes(name: str, value: Any) -> tuple[int, ...]:
    found = several(name, value)
    try:
        if any(isinstance(v, bool | float) for v in found):
            raise ValueError
        return tuple(int(v) for v in found)
    except (TypeError, ValueError):
        raise ConfigError(f"task.{name} = {value!r} is not a list of whole numbers") from None


def angles(value: Any) -> tuple[float, ...]:
    """The angles in degrees, counter-clockwise."""
    found = []
    for given in several("angles", value):
        try:
            angle = math.nan if isinstance(given, bool) else float(given)
        except (TypeError, ValueError):
            angle = math.nan
        if not -360 <= angle <= 360:
            raise ConfigError(f"task.angles: {given!r} is not an angle from -360 to 360 degrees")
        found.append(angle % 360)
    if len(set(found)) < len(found):
        raise ConfigError(f"task.angles = {value!r}: two clusters would have the same rotation")
    return tuple(found)


def counts(clusters: int, sizes: Any, nodes: int | None) -> tuple[int, ...]:
    """The number of nodes of each cluster (None: as equal as possible); weights if `nodes` is unknown."""
    if sizes is None:
        per, more = divmod(nodes or clusters, clusters)
        return tuple(per + (cluster < more) for cluster in range(clusters))
    found = wholes("sizes", sizes)
    if len(found) != clusters:
        raise ConfigError(f"task.sizes = {list(found)}: {len(found)} sizes for {clusters} angles")
    if min(found) < 0 or sum(found) == 0:
        raise ConfigError(f"task.sizes = {list(found)} are not valid numbers of nodes")
    if nodes is not None and sum(found) != nodes:
        raise ConfigError(f"task.sizes = {list(found)} add up to {sum(found)} nodes, but there are {nodes}")
    return found
