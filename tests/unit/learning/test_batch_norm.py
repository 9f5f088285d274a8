"""Networks with batch normalisation: their counters stay on the node, and no encoding damages the rest."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from pfl_node.learning.learner import Learner
from pfl_node.model import LocalState, Model, PartialModel, StateCell
from pfl_node.protocol.compression import Compressor
from pfl_node.settings import WireSettings
from pfl_node.store.checkpoint import load_checkpoint, save_checkpoint
from pfl_node.store.model_file import read_model, save_model
from pfl_node.types import Envelope, PeerId
from pfl_node.wire.codec import decode, encode
from tests.unit.learning.nets import CLASSES, learner

COUNTERS = ("2.num_batches_tracked", "5.num_batches_tracked")


def deep() -> nn.Module:
    first = nn.Linear(4, 64), nn.BatchNorm1d(64), nn.ReLU()
    return nn.Sequential(nn.Flatten(), *first, nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Linear(64, CLASSES))


@pytest.fixture(scope="module")
def trained() -> tuple[Learner, Model, LocalState]:
    """A network that was trained for 2000 steps, as far as its counters show."""
    me = learner(deep, lr=0.05, batch=8)
    cell = StateCell(me.start(0))
    model = me.train(me.fresh(0), seed=0, steps=200, state=cell)
    assert counters(me, model, cell.state) == [200, 200]
    return me, model, with_counters(cell.state, 2000)


def with_counters(state: LocalState, steps: int) -> LocalState:
    assert state.private is not None
    return LocalState(np.full_like(state.private, steps), state.layout)


def counters(me: Learner, model: Model, state: LocalState) -> list[int]:
    tensors = me.tensors(model, state)
    found = [tensors[name] for name in tensors if name.endswith("num_batches_tracked")]
    assert all(counter.dtype == np.int64 for counter in found)
    return [int(counter) for counter in found]


def buffers(model: Model) -> list[slice]:
    return [span for entry, span in model.layout.spans() if not entry.trained]


def received(model: Model, **how: object) -> Model:
    return decode(
        encode(model, Envelope(PeerId("ann"), "run"), WireSettings.model_validate(how)), model.layout
    ).model


@pytest.mark.parametrize("encoding", ["int8", "fp16"])
@pytest.mark.parametrize("compress", ["none", "top:0.3", "fragments:16/5"])
def test_a_network_is_as_good_after_any_encoding(
    trained: tuple[Learner, Model, LocalState], encoding: str, compress: str
) -> None:
    me, model, state = trained
    compressor = Compressor(compress, PeerId("ann"))
    compressor.begin(me.fresh(0))
    sent = compressor.compressed(model, PeerId("bob"), 0)
    got = received(sent, encoding=encoding)
    places = got.indices if isinstance(got, PartialModel) else np.arange(model.layout.size)
    weights = np.zeros(model.layout.size, bool)
    for entry, span in model.layout.spans():
        weights[span] = entry.trained
    kinds = [weights, *(np.isin(np.arange(model.layout.size), range(s.start, s.stop)) for s in buffers(model))]
    for kind in kinds:
        size, error = (np.linalg.norm(v[kind[places]]) for v in (sent.numbers, got.numbers - sent.numbers))
        assert error <= 0.02 * size
    whole = got.over(model)
    before, after = me.score([model, whole], state=StateCell(state))
    assert after.accuracy == before.accuracy > 0.9


@pytest.mark.parametrize("encoding", ["fp16", "int8"])
def test_a_counter_of_any_size_is_exact(trained: tuple[Learner, Model, LocalState], encoding: str) -> None:
    """fp16 has no numbers from 65,520 on."""
    me, model, state = trained
    got = received(model, encoding=encoding, zstd=1)
    assert counters(me, got, with_counters(state, 100_000)) == [100_000, 100_000]
    assert not any(entry.name.endswith("num_batches_tracked") for entry in me.layout.entries)


def test_a_node_continues_from_a_checkpoint_with_its_counters(tmp_path: Path) -> None:
    me = learner(deep, batch=8)
    cell = StateCell(me.start(0))
    model = me.train(me.fresh(0), seed=0, steps=7, state=cell)
    save_checkpoint(tmp_path / "c", {"model": model, "local": cell.state}, me.layout)
    found = load_checkpoint(tmp_path / "c", me.layout)
    assert found is not None
    again = StateCell(found["local"])
    assert counters(me, found["model"], again.state) == [7, 7]
    one, other = (me.train(m, seed=1, steps=5, state=s) for m, s in ((model, cell), (found["model"], again)))
    assert one == other
    assert counters(me, one, cell.state) == counters(me, other, again.state) == [12, 12]


def test_the_model_file_of_a_node_has_every_tensor(
    trained: tuple[Learner, Model, LocalState], tmp_path: Path
) -> None:
    me, model, state = trained
    save_model(tmp_path / "model.safetensors", me.tensors(model, state))
    module, (_, tensors) = deep(), read_model(tmp_path / "model.safetensors")
    module.load_state_dict({name: torch.from_numpy(array) for name, array in tensors.items()}, strict=True)
    assert [int(module.state_dict()[name]) for name in COUNTERS] == [2000, 2000]
    assert me.from_tensors(tensors) == model


def test_the_counters_of_a_cumulative_average_count_the_batches_of_the_node() -> None:
    """With momentum=None, a statistic is the mean over as many batches as the counter says."""
    me = learner(
        lambda: nn.Sequential(
            nn.Flatten(), nn.Linear(4, 5), nn.BatchNorm1d(5, momentum=None), nn.Linear(5, CLASSES)
        ),
        batch=40,
    )
    cell, model = StateCell(me.start(0)), me.fresh(0)
    once = me.train(model, seed=0, steps=1, lr=1e-9, state=cell)
    twice = me.train(once, seed=0, steps=3, lr=1e-9, state=cell)
    assert counters(me, twice, cell.state) == [4]
    a, b = (me.tensors(m)["2.running_mean"] for m in (once, twice))
    np.testing.assert_allclose(a, b, rtol=1e-3)  # every batch has all samples
