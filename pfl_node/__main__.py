"""`python -m pfl_node` and the `pfl-node` script. Loads the command by name: the root package imports no other."""

from __future__ import annotations

import sys
from importlib import import_module


def main() -> int:
    try:
        cli = import_module("pfl_node.cli")
    except KeyboardInterrupt:
        return 130
    return int(cli.main())


if __name__ == "__main__":
    sys.exit(main())
