"""Freed memory stays in the process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

COUNTED = """
import resource
import sys

from pfl_node.learning.malloc import keep_memory

def page_faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [b"x" * (12 << 20) for _ in range(4)]
    del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

kept = "keep" in sys.argv and keep_memory()
if "learner" in sys.argv:
    from pfl_node.learning.build import learner_at
    from pfl_node.learning.task import Place
    from pfl_node.settings import Settings

    learner_at(Settings(device="cpu"), Place(index=0, nodes=4, seed=0, node_id="n000"))
    kept = True
first, *_, last = [page_faults() for _ in range(5)]
print(kept, first, last)
"""


def measured(*arguments: str, **environment: str) -> tuple[bool, int, int]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    command = [sys.executable, "-c", COUNTED, *arguments]
    said = subprocess.run(command, env=clean | environment, capture_output=True, text=True, check=True).stdout
    kept, first, last = said.split()
    return kept == "True", int(first), int(last)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc only")
def test_blocks_that_were_freed_are_used_again_without_page_faults() -> None:
    kept, first, last = measured("keep")
    if not kept:
        pytest.skip("this C library has no mallopt")
    assert last < 1_000 < first
    assert measured()[2] > 1_000


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc only")
def test_a_process_that_learns_keeps_freed_memory() -> None:
    if not measured("keep")[0]:
        pytest.skip("this C library has no mallopt")
    assert measured("learner")[2] < 1_000


def test_the_users_own_setting_of_the_heap_stays() -> None:
    assert measured("keep", MALLOC_ARENA_MAX="2")[0] is False
