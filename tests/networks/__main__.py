"""`make test-netns [ARGS=...]`: the scenarios, or one line that says why they cannot run here. Needs root, because
the kernel's NAT is configured; everything happens in namespaces that end with this process."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.networks.internet import missing

ROOT = Path(__file__).resolve().parents[2]
UNSHARE = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc")


def main() -> int:
    if lack := missing():
        print(f"test-netns: {lack}", file=sys.stderr)
        return 2
    if os.getpid() != 1:
        sys.stdout.flush()
        os.execvp("unshare", [*UNSHARE, sys.executable, "-m", "tests.networks", *sys.argv[1:]])
    words = sys.argv[1:]
    where = [] if any(word.startswith("tests") for word in words) else [str(ROOT / "tests" / "networks")]
    return int(pytest.main(["-m", "netns", "-s", "-n", "0", *where, *words]))


if __name__ == "__main__":
    sys.exit(main())
