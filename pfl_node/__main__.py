"""`python -m pfl_node` and the `pfl-node` script."""

from __future__ import annotations

import sys

from pfl_node.cli import main

if __name__ == "__main__":
    sys.exit(main())
