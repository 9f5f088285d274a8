"""The compressor on an event loop: large models in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from pfl_node.model import Model, PartialModel
from pfl_node.protocol.compression import Compressor
from pfl_node.types import PeerId

LARGE = 1 << 18  # numbers; to choose among more takes longer than some milliseconds


class AsyncCompressor(Compressor):
    def __init__(self, how: str, me: PeerId) -> None:
        super().__init__(how, me)
        self._calls = asyncio.Lock()  # one at a time, in order, because messages take turns

    async def compress(
        self,
        model: Model,
        peers: Sequence[PeerId],
        round: int | None,
        base: Model | None = None,
        *,
        fetched: bool = False,
        resumes: bool = False,
    ) -> list[Model]:
        """The part of a model that is sent to each of these peers; see `compressed`."""

        def choose() -> list[Model]:
            return [self.compressed(model, p, round, base, fetched=fetched, resumes=resumes) for p in peers]

        if not self.how.kind or isinstance(model, PartialModel):
            return choose()
        async with self._calls:
            if model.layout.size < LARGE:
                return choose()
            thread = asyncio.get_running_loop().run_in_executor(None, choose)
            try:
                return await asyncio.shield(thread)
            except asyncio.CancelledError:
                await asyncio.wait((thread,))  # the next call must not change the same memory
                raise
