"""Notes travel with a model in both directions, thousands of them beside the largest message."""

from __future__ import annotations

import asyncio

import pytest

from pfl_node.errors import Reason, Refused
from pfl_node.model import Layout
from pfl_node.node.host import MAX_ID
from pfl_node.settings import WireSettings
from pfl_node.types import Envelope, Offer
from pfl_node.wire.codec import MAX_NOTES, encode
from pfl_node.wire.payload import ONE_MESSAGE
from tests.unit.wire.small_host import ANN, BOB, RUN, FakeHost, calling, layout_of, model_of, serving

SMALL, FULL, STREAM = layout_of(90), layout_of(ONE_MESSAGE // 4 - 10), layout_of(700_000)


def notes(n: int, width: int = MAX_ID) -> dict[str, float]:
    """One about each of n peers, with ids as long as they may be."""
    return {f"{i:0{width}x}": i / 7 - 100 for i in range(n)}


@pytest.mark.parametrize("how", [WireSettings(), WireSettings(zstd=1)])
@pytest.mark.parametrize("layout", [SMALL, FULL, STREAM])
def test_thousands_of_notes_travel_both_ways(layout: Layout, how: WireSettings) -> None:
    async def scenario() -> None:
        host, model = FakeHost(layout), model_of(layout)
        host.tag, host.notes = 5, notes(MAX_NOTES)
        async with serving(host, how) as address, calling(how) as client:
            for many in (1, 100, 2000, MAX_NOTES):
                await client.send(BOB, address, model, tag=3, samples=9, notes=notes(many))
                (offer,) = host.mailbox.take()
                assert offer == Offer(ANN, model, None, 3, 9, notes(many))
            back = await client.fetch(BOB, address, "model", layout)
            assert back == Offer(BOB, host.current, 4, 5, 12, notes(MAX_NOTES))
            head = await client.fetch(BOB, address, "head", layout)
            assert head == Offer(BOB, host.current.head, 4, 5, 12, notes(MAX_NOTES))

    asyncio.run(scenario())


def test_a_model_with_many_notes_is_still_used_where_it_lies() -> None:
    model = model_of(FULL)
    for many in (0, 1, 170, 171, 172, MAX_NOTES):
        (message,) = encode(model, Envelope(ANN, RUN, notes=notes(many)), WireSettings())
        assert (len(message) - model.nbytes - 11) % 16 == 0  # the trailer has 11 bytes


def test_too_many_notes_are_refused_by_whoever_gets_them() -> None:
    async def scenario() -> None:
        host = FakeHost(SMALL)
        host.notes = notes(MAX_NOTES + 1, width=4)
        async with serving(host) as address, calling() as client:
            for call in (
                client.send(BOB, address, model_of(SMALL), notes=notes(MAX_NOTES + 1, width=4)),
                client.fetch(BOB, address, "model", SMALL),
            ):
                with pytest.raises(Refused, match=f"{MAX_NOTES + 1} notes; {MAX_NOTES} are allowed") as caught:
                    await call
                assert caught.value.reason is Reason.TOO_LARGE
        assert (len(host.mailbox), host.admitted, host.cancelled) == (0, 1, 0)

    asyncio.run(scenario())
