"""The demo's baseline in a process of its own: settings on stdin, the simulator's summary on stdout."""

from __future__ import annotations

import json
import sys

from pfl_node.settings import Settings
from pfl_node.sim import simulate


def main() -> int:
    settings = Settings.model_validate_json(sys.stdin.read())
    summary = simulate(settings, nodes=int(sys.argv[1]))
    print(json.dumps(summary.as_dict()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
