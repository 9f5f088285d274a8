"""Vectors beside the model, in the simulator: what arrives, what it costs, and a policy that gets it wrong."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from pfl_node.errors import LayoutMismatch
from pfl_node.model import Entry, Layout, Model
from pfl_node.policies.base import Policy
from pfl_node.settings import Settings
from pfl_node.steps import Fetch, Gather, Peers, Publish, Record, Report, Send, Sleep
from pfl_node.types import Offer, Part
from tests.toy import LAYOUT, constant
from tests.unit.sim.toy_swarms import A, ran


class Tracks(Policy):
    """Sends a model and two vectors, and fetches them."""

    vectors: ClassVar[dict[str, Part]] = {"y": "model", "h": "head"}

    async def main(self) -> None:
        both = {"y": constant(2.0), "h": constant(3.0).head}
        for t in self.remaining():
            await Publish(constant(1.0), t, vectors=both)
            await Sleep(1.0)
            peers = await Peers()
            await Send(peers, constant(1.0), round=t, vectors=both)
            sent, pulled = await Gather(peers, t), await Fetch(peers)
            for offer in (*sent, *pulled):
                await Record("got", {name: v.vector.tolist() for name, v in offer.vectors.items()})
            await Report(t, self.model, vectors=both)


@pytest.mark.parametrize("how", [{}, {"encoding": "int8", "zstd": 3}], ids=["fp32", "int8, zstd"])
def test_vectors_arrive_with_pushed_and_fetched_models(tmp_path: Path, how: dict[str, object]) -> None:
    settings = Settings.model_validate({"wire": how})
    run = ran(tmp_path, Tracks, nodes=3, rounds=1, settings=settings)
    rows = run.of("got", A)
    assert len(rows) == 4
    for row in rows:
        assert row["y"] == pytest.approx([2.0] * LAYOUT.size, rel=0.01)
        assert row["h"] == pytest.approx([3.0] * LAYOUT.head.size, rel=0.01)
    if not how:
        assert run.node(A).traffic.bytes_sent == 4 * (2 * LAYOUT.nbytes + LAYOUT.head.nbytes)


@pytest.mark.parametrize(
    "lacks", [Send([A], constant(1.0), 0), Publish(constant(1.0), 0), Report(0, constant(1.0))]
)
def test_a_message_without_the_declared_vectors_is_an_error_of_the_policy(
    tmp_path: Path, lacks: Send | Publish | Report
) -> None:
    class Omits(Tracks):
        async def main(self) -> None:
            with pytest.raises(
                LayoutMismatch, match=f"a {type(lacks).__name__} with .* the policy declares vectors"
            ):
                await lacks
            await Record("raised")
            await Report(0, self.model, vectors={"y": constant(2.0), "h": constant(3.0).head})

    assert len(ran(tmp_path, Omits, nodes=2, rounds=1).of("raised")) == 2


def test_a_policy_that_serves_nothing_reports_without_vectors(tmp_path: Path) -> None:
    class Pushes(Tracks):
        serves = ()

        async def main(self) -> None:
            await Report(0, self.model)

    assert len(ran(tmp_path, Pushes, nodes=2, rounds=1).of("round")) == 2


def test_a_model_of_another_layout_is_refused_by_its_sender(tmp_path: Path) -> None:
    other = Layout((Entry("another", (3,)),), ())

    class Strange(Policy):
        async def main(self) -> None:
            with pytest.raises(LayoutMismatch, match="which is not a model of this task or a part of one"):
                await Send(await Peers(), Model(other, np.zeros(3, np.float32)), round=0)
            await Report(0, self.model)

    assert len(ran(tmp_path, Strange, nodes=2, rounds=1).of("round")) == 2


def test_a_part_that_the_policy_does_not_take_is_refused_by_its_sender(tmp_path: Path) -> None:
    class SendsAll(Policy):
        takes = ("core",)

        async def main(self) -> None:
            with pytest.raises(LayoutMismatch, match=r"a Send of a model, .* declares takes = \('core',\)"):
                await Send(await Peers(), self.model, round=0)
            await Send(await Peers(), self.model.core, round=0)
            await Report(0, self.model)

    run = ran(tmp_path, SendsAll, nodes=2, rounds=1)
    assert len(run.of("round")) == 2
    assert not run.swarm.refused()


def test_an_offer_with_vectors_counts_their_bytes() -> None:
    offer = Offer(A, constant(1.0), vectors={"y": constant(1.0), "h": constant(1.0).head})
    assert offer.nbytes == 2 * LAYOUT.nbytes + LAYOUT.head.nbytes


@pytest.mark.parametrize(
    ("vectors", "why"),
    [
        ({f"v{i}": constant(0.0) for i in range(9)}, "at most 8"),
        ({"not a name": constant(0.0)}, "cannot be called"),
        ({"x" * 33: constant(0.0)}, "cannot be called"),
    ],
)
def test_a_send_with_impossible_vectors_is_an_error_of_the_policy(vectors: dict[str, Model], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Send([A], constant(0.0), vectors=vectors)


@pytest.mark.parametrize("base", [constant(0.0).core, constant(0.0).sparse([1])])
def test_a_base_that_messages_cannot_be_compared_with_is_an_error_of_the_policy(base: Model) -> None:
    """Also without `wire.compress`, which alone uses it: an author would not notice before a user sets it."""
    with pytest.raises(ValueError, match="complete model with the layout of what is sent"):
        Send([A], constant(0.0), base=base)
