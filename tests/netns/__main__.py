"""`make test-chaos`: the tests that need the lab, or one line that says why it cannot run here."""

from __future__ import annotations

import sys

import pytest

from tests.netns.namespaces import ROOT, missing


def main() -> int:
    if lack := missing():
        print(f"test-chaos: {lack}", file=sys.stderr)
        return 2
    return pytest.main(["-m", "chaos", "-s", str(ROOT / "tests" / "netns"), *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
