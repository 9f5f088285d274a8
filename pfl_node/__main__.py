"""`python -m pfl_node` and the `pfl-node` script."""

from __future__ import annotations

import sys

try:
    from pfl_node.cli import main
except KeyboardInterrupt:
    sys.exit(130)

if __name__ == "__main__":
    sys.exit(main())
