"""Writes the table of all settings into configure.md. With --check it only says, by exit code 1, that it is stale.

python docs/reference.py [--check]
"""

from __future__ import annotations

import sys
from pathlib import Path

from pfl_node.config import toml
from pfl_node.keys import allowed, keys, sections
from pfl_node.settings import Settings

PAGE = Path(__file__).with_name("configure.md")
BEGIN, END = "<!-- settings: begin (make docs) -->\n", "<!-- settings: end -->\n"


def tables() -> str:
    """One table for the top of the tree, one for each section."""
    parts = ["### At the top\n\n" + table([key for key in keys() if "." not in key])]
    for section, cls in sections().items():
        about = " ".join((cls.__doc__ or "").split())
        rows = table([key for key in keys() if key.startswith(f"{section}.")])
        parts.append(f"### `[{section}]`\n\n{about}\n\n{rows}")
    return "\n".join(parts)


def table(names: list[str]) -> str:
    lines = ["| key | may be | default | what it is |", "| --- | --- | --- | --- |"]
    for name in names:
        cls, field = keys()[name]
        about = " ".join((cls.model_fields[field].description or "").split())
        lines.append(f"| `{name}` | {allowed(name)} | {default(name)} | {about} |".replace("  |", " |"))
    return "\n".join(lines) + "\n"


def default(name: str) -> str:
    value = Settings()
    for part in name.split("."):
        value = getattr(value, part)
    return "" if value is None else f"`{toml(value)}`"


def page(text: str) -> str:
    """The page with fresh tables between its two marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{tables()}\n{END}{after}"


def main(words: list[str]) -> int:
    old = PAGE.read_text(encoding="utf-8")
    new = page(old)
    if old == new:
        return 0
    if "--check" in words:
        print("docs/configure.md is stale: run make docs", file=sys.stderr)
        return 1
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
