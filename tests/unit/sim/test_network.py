"""The simulated network: encodings, bytes, and the models that receivers get."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pfl_node.model import Model
from pfl_node.policies.base import Policy
from pfl_node.settings import Settings
from pfl_node.sim.packed import Packed
from pfl_node.steps import Fetch, Gather, Peers, Publish, Record, Report, Send, Sleep
from pfl_node.types import Envelope, PeerId
from pfl_node.wire.codec import decode, encode
from pfl_node.wire.framing import parse
from pfl_node.wire.payload import Payload
from tests.toy import LAYOUT, constant
from tests.unit.sim.toy_swarms import A, B, ran

ODD = Model(LAYOUT, np.array([1.0, 0.333333, -0.123456, 1e-3, 7.7], np.float32))


def wire(**more: Any) -> Settings:
    return Settings.model_validate({"wire": more})


class Exchange(Policy):
    """Every node sends the same uneven model and fetches it."""

    lockstep = True

    async def main(self) -> None:
        for t in self.remaining():
            peers = await Peers()
            await Publish(ODD, t)
            await Send(peers, ODD, round=t)
            offers = await Gather(peers, t)
            await Sleep(1.0)
            pulled = await Fetch(peers)
            await Record(
                "got", {"sent": offers[0].model.vector.tolist(), "pulled": pulled[0].model.vector.tolist()}
            )
            await Report(t, self.model)


@pytest.mark.parametrize("told", [{}, {"encoding": "fp16"}, {"encoding": "int8"}, {"encoding": "int8", "zstd": 3}])
def test_a_model_arrives_as_the_real_codec_brings_it_and_its_bytes_are_counted(
    told: dict[str, Any], tmp_path: Path
) -> None:
    settings = wire(**told)
    messages = list(encode(ODD, Envelope(PeerId("x"), "r"), settings.wire))
    nbytes = sum(parse(message).data.nbytes for message in messages)
    expected = decode(messages, LAYOUT).model.vector.tolist()
    run = ran(tmp_path, Exchange, nodes=2, rounds=1, settings=settings)
    (row,) = run.of("got", A)
    assert (row["sent"], row["pulled"]) == (
        [pytest.approx(v) for v in expected],
        [pytest.approx(v) for v in expected],
    )
    assert run.node(A).traffic.bytes_sent == 2 * nbytes  # pushed to B, and fetched by B
    assert run.node(B).traffic.bytes_received == 2 * nbytes


def test_plain_numbers_pass_by_reference() -> None:
    packed = Packed.of(Payload(ODD), Settings().wire)
    assert packed.model is ODD
    assert packed.nbytes == ODD.nbytes
    assert Packed.of(Payload(ODD), wire(encoding="fp16").wire).nbytes == ODD.nbytes // 2


def test_what_is_not_finite_is_refused_in_every_encoding(tmp_path: Path) -> None:
    class Spoils(Policy):
        async def main(self) -> None:
            if self.me == A:
                await Record("answer", {"taken": await Send([B], constant(float("nan")))})
            await Sleep(5.0)
            await Report(0, self.model)

    for encoding in ("fp32", "fp16", "int8"):
        run = ran(tmp_path, Spoils, nodes=2, settings=wire(encoding=encoding))
        assert run.swarm.refused() == {"not_finite": 1}


def test_no_more_models_are_sent_at_a_time_than_the_settings_allow(tmp_path: Path) -> None:
    """With `wire.concurrency` of 1 each push waits for the receipt of the one before."""

    class Sends(Policy):
        async def main(self) -> None:
            if self.me == A:
                before = await Sleep(0)
                await Send(await Peers(), self.model)
                await Record("took", {"seconds": await Sleep(0) - before})
            await Sleep(5.0)
            await Report(0, self.model)

    one, many = (
        ran(tmp_path, Sends, nodes=6, settings=wire(concurrency=n)).of("took")[0]["seconds"] for n in (1, 8)
    )
    assert one == pytest.approx(5 * many)
