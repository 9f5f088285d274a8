"""`wire.compress` on an event loop: which models are compressed in a thread, and in which order."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import pytest

from pfl_node.model import Entry, Layout, Model, PartialModel
from pfl_node.node.async_compressor import LARGE, AsyncCompressor
from pfl_node.types import PeerId

ANN, BOB, EVE = PeerId("ann"), PeerId("bob"), PeerId("eve")


class Watched(AsyncCompressor):
    """Records the threads. In another thread, it waits until it may continue."""

    def __init__(self, how: str) -> None:
        super().__init__(how, ANN)
        self.threads: list[threading.Thread] = []
        self.may_go = threading.Event()

    def compressed(self, *given: Any, **options: Any) -> Model:
        self.threads.append(thread := threading.current_thread())
        if thread is not threading.main_thread():
            assert self.may_go.wait(60)
        return super().compressed(*given, **options)


def model(size: int, value: float = 1.0) -> Model:
    return Model(Layout((Entry("core", (size,)),), ()), np.full(size, value, np.float32))


@pytest.mark.parametrize("how", ["top:0.1", "fragments:4"])
def test_the_event_loop_runs_while_a_large_model_is_compressed(how: str) -> None:
    compressor = Watched(how)

    async def scene() -> None:
        work = asyncio.create_task(compressor.compress(model(LARGE), [BOB, EVE], 0))
        while not compressor.threads:  # noqa: ASYNC110
            await asyncio.sleep(0)
        compressor.may_go.set()
        assert all(isinstance(one, PartialModel) for one in await work)

    asyncio.run(scene())
    assert len(compressor.threads) == 2
    assert threading.main_thread() not in compressor.threads


@pytest.mark.parametrize(("how", "size"), [("top:0.1", 100), ("fragments:4", 100), ("none", LARGE)])
def test_other_models_need_no_thread(how: str, size: int) -> None:
    compressor = Watched(how)
    asyncio.run(compressor.compress(model(size), [BOB], 0))
    assert compressor.threads == [threading.main_thread()]


def test_models_take_their_turns_in_the_order_of_the_calls() -> None:
    """Also after a call that was cancelled."""
    values = [model(LARGE, 1.0), model(LARGE, 2.0), model(LARGE, 3.0)]
    expected = AsyncCompressor("top:0.1", ANN)
    one_by_one = [expected.compressed(value, BOB, 0) for value in values]
    compressor = Watched("top:0.1")

    async def scene() -> list[list[Model]]:
        first = asyncio.create_task(compressor.compress(values[0], [BOB], 0))
        others = [asyncio.create_task(compressor.compress(value, [BOB], 0)) for value in values[1:]]
        while not compressor.threads:  # noqa: ASYNC110
            await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        assert len(compressor.threads) == 1
        compressor.may_go.set()
        with pytest.raises(asyncio.CancelledError):
            await first
        return [await other for other in others]

    assert [m for (m,) in asyncio.run(scene())] == one_by_one[1:]
