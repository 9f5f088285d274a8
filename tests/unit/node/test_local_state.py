"""The local state of a node: jobs get it, trainings replace it, checkpoints and segments keep it."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pfl_node.daemon.thread_trainer import ThreadTrainer
from pfl_node.errors import StoreError
from pfl_node.learning.trainer import TrainerThread
from pfl_node.model import LocalState, Model, StateCell
from pfl_node.node.local_state import StatefulTrainer
from pfl_node.node.ports import Job, Plan
from pfl_node.policies import configure
from pfl_node.policies.el import El
from pfl_node.settings.load import load_settings
from pfl_node.sim.event_journal import EventJournal
from pfl_node.sim.faults import Fault, node_ids, parse_faults
from pfl_node.sim.job_pool import read_frame, write_frame
from pfl_node.sim.simulate import simulate
from pfl_node.sim.simulation import Simulation
from pfl_node.store.checkpoint import load_checkpoint, save_checkpoint
from pfl_node.types import PeerId
from tests.toy import LAYOUT, ToyLearner, constant


class KeepingLearner(ToyLearner):
    """Its private part is one number, by which training shifts the model; it counts its trainings."""

    stateful = True

    def start(self, seed: int) -> LocalState:
        return LocalState(np.zeros(1, np.float32), "one number", facts={"seed": seed % 7, "trainings": 0})

    def train(
        self,
        model: Model,
        *,
        seed: int,
        state: StateCell | None = None,
        between: Callable[[], None] | None = None,
        **options: Any,
    ) -> Model:
        assert state is not None
        assert state.state.private is not None
        was, count = state.state, int(state.state.facts["trainings"]) + 1
        found = super().train(model, seed=seed, between=between, **options)
        momentum = was.tensors.get("momentum", np.zeros(5)) / 2 + found.vector
        facts = {**was.facts, "trainings": count}
        private = state.state.private + np.float32(0.5)
        state.state = LocalState(private, was.layout, {"momentum": momentum}, facts)
        return Model(LAYOUT, found.vector + private)

    def score(self, models: Any, *, state: StateCell | None = None, **options: Any) -> Any:
        assert state is not None
        assert state.state.private is not None
        assert not state.state.tensors
        return super().score([Model(LAYOUT, m.vector + state.state.private) for m in models], **options)

    def confusion(self, model: Model, split: Any = "test", *, state: StateCell | None = None) -> list[list[int]]:
        right = round(self.score([model], state=state)[0].accuracy * self.samples)
        return [[right, self.samples - right], [0, 0]]


def keeping(index: int, node: PeerId) -> Any:
    return KeepingLearner(point=float(index))


def simulated(folder: Path, faults: tuple[Fault, ...] = (), rounds: int = 4) -> Simulation:
    settings = load_settings(overrides={"rounds": rounds, "store.checkpoint_every": 1})
    plan = Plan(El, configure(El, {}))
    with EventJournal(folder / "journal.jsonl") as journal:
        swarm = Simulation(settings, plan, keeping, nodes=3, journal=journal, faults=faults)
        swarm.run()
    return swarm


def state_of(swarm: Simulation, node: str) -> LocalState:
    found = swarm.world.nodes[PeerId(node)].node
    assert found is not None
    assert found.trainer.state is not None
    return found.trainer.state


def test_every_training_continues_from_the_state_after_the_one_before(tmp_path: Path) -> None:
    state = state_of(simulated(tmp_path), "n000")
    assert (state.facts["trainings"], list(state.private or ())) == (4, [2.0])


def test_a_restarted_node_continues_with_the_state_of_its_checkpoint(tmp_path: Path) -> None:
    faults = parse_faults(("crash:n001@0.9", "restart:n001@1.1"), node_ids(3))
    swarm = simulated(tmp_path, tuple(faults), rounds=20)
    node = swarm.world.nodes[PeerId("n001")]
    journal = (tmp_path / "journal.jsonl").read_text().splitlines()
    (restarted,) = (row for row in map(json.loads, journal) if row["event"] == "restarted")
    assert restarted["round"] > 2
    assert state_of(swarm, "n001").facts["trainings"] == node.disk.reports


def test_a_simulation_in_segments_has_the_journal_of_one_without(tmp_path: Path) -> None:
    settings = load_settings(overrides={"rounds": 4, "policy.name": "el"})
    for every in (2, 4):
        simulate(settings, nodes=3, segment=every, out=tmp_path / str(every), load=keeping)
    assert (tmp_path / "2" / "journal.jsonl").read_bytes() == (tmp_path / "4" / "journal.jsonl").read_bytes()


STATE = LocalState(
    np.arange(3, dtype=np.float32),
    "digest",
    {"step": np.array(7, np.int64), "mean": np.ones((2, 2)), "mask": np.array([True, False])},
    {"best": 0.5, "names": ["a", "b"], "none": None},
)


def same(a: LocalState, b: LocalState) -> bool:
    arrays = [(a.tensors[n], b.tensors[n]) for n in STATE.tensors]
    return (
        np.array_equal(a.private, b.private)  # type: ignore[arg-type]
        and (a.layout, a.facts, a.tensors.keys()) == (b.layout, b.facts, b.tensors.keys())
        and all(x.dtype == y.dtype and x.shape == y.shape and np.array_equal(x, y) for x, y in arrays)
    )


def test_a_state_survives_a_checkpoint(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "c", {"model": constant(1.0), "local": STATE}, LAYOUT)
    found = load_checkpoint(tmp_path / "c", LAYOUT)
    assert found is not None
    assert same(found["local"], STATE)
    assert found["model"] == constant(1.0)


def test_a_state_survives_the_pipe_to_a_worker_process() -> None:
    pipe = io.BytesIO()
    write_frame(pipe, {}, (constant(2.0), STATE))
    pipe.seek(0)
    frame = read_frame(pipe) or pytest.fail("nothing came")
    model, state = frame.value(ToyLearner())
    assert same(state, STATE)
    assert model == constant(2.0)


def test_a_state_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="read-only"):
        STATE.tensors["mean"][0] = 3
    with pytest.raises(TypeError):
        STATE.facts["best"] = 1.0  # type: ignore[index]


def with_trainer(learner: ToyLearner, act: Callable[[StatefulTrainer], Any]) -> StatefulTrainer:
    async def main() -> StatefulTrainer:
        thread = TrainerThread()
        trainer = StatefulTrainer(ThreadTrainer.of(thread, learner))
        await trainer.start(learner, 0)
        await act(trainer)
        await thread.close()
        return trainer

    return asyncio.run(main())


def train(trainer: StatefulTrainer) -> Any:
    return trainer.do(Job("train", constant(1.0), {"seed": 1}))


def test_two_trainings_at_once_continue_from_each_other() -> None:
    async def both(trainer: StatefulTrainer) -> None:
        await asyncio.gather(train(trainer), train(trainer))

    state = with_trainer(KeepingLearner(), both).state
    assert state is not None
    assert state.facts["trainings"] == 2


def test_a_training_that_diverges_leaves_the_state_as_it_was() -> None:
    state = with_trainer(KeepingLearner(point=float("nan")), train).state
    assert state is not None
    assert state.facts["trainings"] == 0


def test_a_learner_without_state_gets_none() -> None:
    assert with_trainer(ToyLearner(), train).state is None


def test_a_checkpoint_with_other_private_tensors_is_refused() -> None:
    async def restored(trainer: StatefulTrainer) -> None:
        with pytest.raises(StoreError, match="different private tensors"):
            trainer.restore(STATE)

    with_trainer(KeepingLearner(), restored)
