"""Cells as swarms, without one: what is kept until they are done, and what their processes say."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pfl_node.errors import PflError
from pfl_node.lab.swarms import swarm_checkpoints
from pfl_node.lab.swarms.swarm_cell import SwarmCell, patient, progress
from pfl_node.lab.swarms.swarm_checkpoints import NodeMark, SwarmCheckpoints, SwarmMark, combined
from pfl_node.settings import Settings
from pfl_node.sim.sim_worker import RunOrder
from pfl_node.store.data_dir import DataDir
from pfl_node.swarm.messages import events_path, node_name, state_path
from tests.unit.swarm.made_swarms import after, outcome, record, started, swarm

DETAILS = {"bytes_sent": 10, "bytes_received": 5, "models_sent": {"n001": 2}, "told": {"round": {"head": 1}}}


def order(out: Path, nodes: int = 2) -> RunOrder:
    return RunOrder(Settings(rounds=20), nodes, out=out, segment=5, processes=2)


def kept(place: SwarmCheckpoints, part: int, rows: int) -> SwarmMark:
    """A state of the swarm, as workers and the process above them write it."""
    for name in place.names:
        state_path(place.path, part, name).parent.mkdir(parents=True, exist_ok=True)
        state_path(place.path, part, name).write_bytes(b"state %d" % part)
    mark = SwarmMark(part, tuple(NodeMark(5 * part, rows, DETAILS) for _ in place.names), wall=3.0, cpu=2.0)
    place.save(mark)
    return mark


# -- checkpoints -------------------------------------------------------------------------------------------------


def test_nodes_have_the_names_that_they_have_in_a_simulation(tmp_path: Path) -> None:
    place = SwarmCheckpoints(tmp_path, 2)
    assert place.resume() == SwarmMark(0, (NodeMark(), NodeMark()))
    home = DataDir.open(place.path / "nodes" / node_name(1))
    assert home.identity.id == "n001"
    home.close()


def test_a_swarm_goes_on_from_the_last_state_that_all_nodes_have(tmp_path: Path) -> None:
    place = SwarmCheckpoints(tmp_path, 2)
    place.resume()
    for name in place.names:
        events_path(place.path, name).write_text("before\nafter\n")
    kept(place, 1, rows=0)
    mark = kept(place, 2, rows=len("before\n"))
    assert not state_path(place.path, 1, node_name(0)).exists()
    state_path(place.path, 3, node_name(0)).parent.mkdir()
    state_path(place.path, 3, node_name(0)).write_bytes(b"the other one has none")
    assert SwarmCheckpoints(tmp_path, 2).resume() == mark
    for name in place.names:
        assert events_path(place.path, name).read_text() == "before\n"
        assert (place.path / "nodes" / name / "checkpoint.safetensors").read_bytes() == b"state 2"
    assert mark.sent == (10, 10)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda place: (place.path / "mark.json").write_text("{"),
        lambda place: state_path(place.path, 1, node_name(1)).unlink(),
        lambda place: events_path(place.path, node_name(1)).write_text("less"),
    ],
)
def test_a_state_that_is_not_whole_is_none(tmp_path: Path, spoil: Callable[[SwarmCheckpoints], None]) -> None:
    place = SwarmCheckpoints(tmp_path, 2)
    place.resume()
    for name in place.names:
        events_path(place.path, name).write_text("before\n")
    kept(place, 1, rows=len("before\n"))
    spoil(place)
    assert place.resume().part == 0
    assert events_path(place.path, node_name(0)).read_text() == ""


def test_the_events_of_all_nodes_become_one_journal_in_the_order_of_time(tmp_path: Path) -> None:
    place = SwarmCheckpoints(tmp_path, 2)
    place.resume()
    for name, times in zip(place.names, ((1.0, 4.0), (2.0, 3.0)), strict=True):
        events_path(place.path, name).write_text("".join(json.dumps({"time": t}) + "\n" for t in times))
    place.finish(outcome(record(0), record(1)))
    rows = [json.loads(line) for line in (tmp_path / "journal.jsonl").read_text().splitlines()]
    assert [row["time"] for row in rows] == [1.0, 2.0, 3.0, 4.0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["journal.jsonl", "summary.json"]


def test_nodes_that_are_still_leaving_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swarm_checkpoints, "POLL", 0.01)
    monkeypatch.setattr(swarm_checkpoints, "LEAVING", 0.05)
    place = SwarmCheckpoints(tmp_path, 1)
    place.resume()
    home = DataDir.open(place.path / "nodes" / node_name(0))
    with pytest.raises(PflError, match="another run is active"):
        asyncio.run(place.wait_until_free())
    home.close()
    asyncio.run(place.wait_until_free())


# -- two lives of a node ---------------------------------------------------------------------------------------


def test_counters_of_two_lives_are_added_and_the_last_words_count() -> None:
    now: dict[str, Any] = {"bytes_sent": 7, "bytes_received": 1, "models_sent": {"n001": 1, "n002": 4}, "peers": 3}
    both = combined(DETAILS, {**now, "told": {"neighbours": {"ids": ["n001"]}}})
    assert (both["bytes_sent"], both["bytes_received"], both["peers"]) == (17, 6, 3)
    assert both["models_sent"] == {"n001": 3, "n002": 4}
    assert both["told"] == {"round": {"head": 1}, "neighbours": {"ids": ["n001"]}}
    assert combined(None, now) == now


def test_a_state_counts_what_was_before_the_incarnation_that_wrote_it(tmp_path: Path) -> None:
    cell = SwarmCell(order(tmp_path), lambda _: None)
    cell.checkpoints.resume()
    mark = SwarmMark(1, (NodeMark(5, 9, DETAILS), NodeMark(5, 9, None)))
    for index in (1, 0):
        message = {"part": 2, "index": index, "round": 10, "rows": 20 + index, "worker": 0, "cpu": 1.0}
        cell._save(mark, {**message, "details": DETAILS})
    first, second = json.loads((cell.checkpoints.path / "mark.json").read_text())["nodes"]
    assert (first["round"], first["rows"], second["rows"]) == (10, 20, 21)
    assert (first["details"]["bytes_sent"], second["details"]["bytes_sent"]) == (20, 10)


def test_a_state_is_the_swarms_when_the_last_node_has_it(tmp_path: Path) -> None:
    cell = SwarmCell(order(tmp_path), lambda _: None)
    mark = cell.checkpoints.resume()
    said = {"part": 1, "round": 5, "rows": 0, "details": DETAILS, "worker": 0}
    cell._save(mark, {**said, "index": 1, "cpu": 2.0})
    assert not (cell.checkpoints.path / "mark.json").exists()
    cell._save(mark, {**said, "index": 0, "cpu": 1.0})
    assert json.loads((cell.checkpoints.path / "mark.json").read_text())["cpu"] == 2.0


# -- the processes ---------------------------------------------------------------------------------------------


def test_an_order_survives_the_pipe(tmp_path: Path) -> None:
    assert RunOrder.load(order(tmp_path).dump()) == order(tmp_path)


def test_nodes_that_take_turns_are_given_time() -> None:
    told = patient(Settings.model_validate({"rounds": 20, "round": {"patience": 5000}}))
    assert told.round.patience == 5000
    calm = patient(Settings(rounds=20)).round
    assert calm.least == calm.patience >= 60
    assert told.store.checkpoint_every > 20


def test_progress_tells_how_many_are_there_and_then_the_slowest() -> None:
    assert progress(swarm(2))["started"] == 0
    ready = after(started(swarm(2)), 3)
    ready.slots[1].round = 11  # a final exchange
    assert progress(ready) == {"done": 13, "total": 20, "slowest": 3, "started": None}
