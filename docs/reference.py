"""Writes the generated tables of the documents: settings, metrics, kinds of events, fail points.

python docs/reference.py [--check]        with --check, write nothing and exit with 1 if a table is stale
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path

from pydantic import BaseModel

from pfl_node.failpoints import EVERYWHERE, PLACES
from pfl_node.ops.events import KINDS
from pfl_node.ops.prometheus import FIGURES
from pfl_node.settings import Settings
from pfl_node.settings.schema import allowed, keys, sections
from pfl_node.settings.toml import toml

ROOT = Path(__file__).resolve().parents[1]


def settings() -> str:
    """One table for the top level, one for each section."""
    parts = ["### Top level\n\n" + table([key for key in keys() if "." not in key])]
    for section, cls in sections().items():
        about = " ".join((cls.__doc__ or "").split())
        rows = table([key for key in keys() if key.startswith(f"{section}.")])
        parts.append(f"### `[{section}]`\n\n{about}\n\n{rows}")
    return "\n".join(parts)


def table(names: list[str]) -> str:
    lines = ["| key | values | default | description |", "| --- | --- | --- | --- |"]
    for name in names:
        cls, field = keys()[name]
        about = descriptions(cls)[field]
        lines.append(f"| `{name}` | {allowed(name)} | {default(name)} | {about} |".replace("  |", " |"))
    return "\n".join(lines) + "\n"


@cache
def descriptions(cls: type[BaseModel]) -> dict[str, str]:
    """The text below each field of a section. Pydantic could read it, but would do so whenever a node starts."""
    found = {}
    (section,) = ast.parse(inspect.getsource(cls)).body
    assert isinstance(section, ast.ClassDef)
    for pair in pairwise(section.body):
        match pair:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = " ".join(text.split())
    return found


def default(name: str) -> str:
    value = Settings()
    for part in name.split("."):
        value = getattr(value, part)
    return "" if value is None else f"`{toml(value)}`"


def metrics() -> str:
    """The metrics under `/metrics`."""
    lines = ["| name | type | labels | description |", "| --- | --- | --- | --- |"]
    for figure in FIGURES:
        labels = ", ".join(f"`{label}`" for label in figure.labels)
        lines.append(f"| `{figure.exported}` | {figure.kind} | {labels} | {figure.help} |".replace("|  |", "| |"))
    return "\n".join(lines) + "\n"


def events() -> str:
    """The kinds of events."""
    rows = [f"| `{kind}` | {about} |" for kind, about in KINDS.items()]
    return "\n".join(["| kind | meaning |", "| --- | --- |", *rows]) + "\n"


def failpoints() -> str:
    """All fail points."""
    more = {name: ", ".join(f"`{a}`" for a in sorted(place.takes - EVERYWHERE)) for name, place in PLACES.items()}
    rows = [
        f"| `{name}` | {place.about} | {more[name]} |".replace("|  |", "| |") for name, place in PLACES.items()
    ]
    return "\n".join(["| fail point | place | additional actions |", "| --- | --- | --- |", *rows]) + "\n"


PAGES: dict[str, tuple[str, Callable[[], str]]] = {
    "docs/configure.md": ("settings", settings),
    "docs/metrics.md": ("metrics", metrics),
    "docs/watch.md": ("events", events),
    "docs/reliability/fail-points.md": ("failpoints", failpoints),
}


def renewed(text: str, mark: str, made: str) -> str:
    """The page with new text between its two marks."""
    begin, end = f"<!-- {mark}: begin (make docs) -->\n", f"<!-- {mark}: end -->\n"
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n{made}\n{end}{after}"


def main(words: list[str]) -> int:
    stale = 0
    for name, (mark, make) in PAGES.items():
        page = ROOT / name
        old = page.read_text(encoding="utf-8")
        new = renewed(old, mark, make())
        if old == new:
            continue
        if "--check" in words:
            print(f"{name} is stale: run make docs", file=sys.stderr)
            stale = 1
        else:
            page.write_text(new, encoding="utf-8")
    return stale


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
