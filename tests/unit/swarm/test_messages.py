"""What a worker is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfl_node.errors import ConfigError
from pfl_node.settings import HttpSettings, Settings
from pfl_node.swarm.messages import WorkerSpec, node_name, split

SETTINGS = Settings.model_validate(
    {
        "rounds": 7,
        "seed": 3,
        "policy": {"name": "pens", "m": 3, "T": 5},
        "task": {"name": "digits", "angles": [0, 90], "sizes": [4, 1]},
        "train": {"lr": 0.2},
        "peer_seed": ["10.0.0.1:1"],
        "start": {"peers": 1, "wait": 3.0},
    }
)


def test_a_spec_survives_the_pipe() -> None:
    spec = WorkerSpec(SETTINGS, 5, (0, 2, 4), "127.0.0.1:7", Path("/tmp/a b"))
    line = spec.dump()
    assert "\n" not in line
    assert WorkerSpec.load(line) == spec


def test_a_node_has_its_own_place_and_waits_for_all_the_others() -> None:
    mine = WorkerSpec(SETTINGS, 5, (0, 2, 4), "127.0.0.1:7", Path("out")).node_settings(2)
    assert (mine.task.index, mine.task.nodes, mine.start.peers) == (2, 5, 4)
    assert mine.data_dir == Path("out/nodes/node-002")
    assert (mine.name, mine.listen, mine.peer_seed) == ("node-002", "127.0.0.1:0", ("127.0.0.1:7",))
    assert mine.task.options == {"angles": [0, 90], "sizes": [4, 1]}
    assert (mine.policy, mine.train, mine.rounds, mine.seed) == (SETTINGS.policy, SETTINGS.train, 7, 3)


def test_node_i_serves_its_page_on_port_plus_i() -> None:
    def page(listen: str | None, index: int) -> str | None:
        settings = SETTINGS.model_copy(update={"http": HttpSettings(listen=listen)})
        return WorkerSpec(settings, 5, (0,), "127.0.0.1:7", Path("out")).node_settings(index).http.listen

    assert [page("127.0.0.1:8100", i) for i in (0, 3)] == ["127.0.0.1:8100", "127.0.0.1:8103"]
    assert page("[::1]:8100", 2) == "[::1]:8102"
    assert page(None, 2) is None
    for impossible in ("127.0.0.1:0", "127.0.0.1:65534"):
        with pytest.raises(ConfigError, match="leaves no port for node 2 of the swarm"):
            page(impossible, 2)


@given(nodes=st.integers(1, 200), workers=st.integers(1, 64))
def test_every_node_has_one_worker_and_no_worker_is_idle_or_much_busier(nodes: int, workers: int) -> None:
    shares = split(nodes, workers)
    assert sorted(i for share in shares for i in share) == list(range(nodes))
    assert len(shares) == min(nodes, workers)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_names_sort_as_numbers() -> None:
    assert [node_name(i) for i in (0, 7, 42, 999)] == ["node-000", "node-007", "node-042", "node-999"]
