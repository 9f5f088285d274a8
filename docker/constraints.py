"""Writes docker/constraints.txt: the version of every package that an image installs, as tested here.

`python docker/constraints.py`. torch is not in it: its version and build are arguments of the image.
"""

import re
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

FILE = Path(__file__).with_name("constraints.txt")
HEAD = "# The versions that the images install. Written by docker/constraints.py.\n"
ROOTS = ("pfl-node", "hatchling")
APART = ("torch", "pfl-node", "triton")  # the builds of torch bring their own


def pinned() -> dict[str, str]:
    """The version of each package that one of the roots needs, directly or not, without extras."""
    found: dict[str, str] = {}
    waiting = list(ROOTS)
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in found or name.startswith(("nvidia-", "cuda-")):
            continue
        try:
            package = distribution(name)
        except PackageNotFoundError:  # for another system
            continue
        found[name] = package.version.partition("+")[0]
        needed = [line for line in package.requires or () if "extra ==" not in line]
        waiting += [re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0] for line in needed]
    return {name: version for name, version in sorted(found.items()) if name not in APART}


if __name__ == "__main__":
    FILE.write_text(HEAD + "".join(f"{name}=={version}\n" for name, version in pinned().items()))
