"""Prints what an image installs before the package itself, from pyproject.toml: all dependencies but torch, or the
named ones. Its output changes only with those lines, so that a layer made from it is made again only then.

`python requirements.py pyproject.toml [NAME...]`
"""

import re
import sys
import tomllib
from pathlib import Path

APART = "torch"  # has a layer of its own


def wanted(pyproject: Path, names: list[str]) -> list[str]:
    """Raises KeyError for a name that is no dependency."""
    lines = {name_of(line): line for line in tomllib.loads(pyproject.read_text())["project"]["dependencies"]}
    return [lines[name] for name in names or lines if name != APART]


def name_of(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]


if __name__ == "__main__":
    print("\n".join(wanted(Path(sys.argv[1]), sys.argv[2:])))
