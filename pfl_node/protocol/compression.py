"""`wire.compress`: which numbers of a model are sent. Pure; receivers keep no state.

"top:0.2" sends the fifth of the numbers that have changed most since they were last sent to any peer. An eighth of
them is chosen in turn instead, so that every number is sent again after a bounded number of messages: a peer that
joined late, or gets only some of the messages, gets the whole model in time. "fragments:16/4" sends 4 of 16 equal
slices. Two nodes send each other the same slices in a round, and others to other peers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import isqrt
from typing import Any, NamedTuple

import numpy as np

from pfl_node.model import Indices, Model, PartialModel, Vector
from pfl_node.protocol.rate_limit import BoundedCounter
from pfl_node.seeds import seed_from
from pfl_node.settings.compress_type import Compression
from pfl_node.types import PeerId

IN_TURN = 8  # one in 8 of the numbers is chosen in turn
FETCHED = "fetched "  # begins the name of a stream of fetched models


class LastSent(NamedTuple):
    """The last model of a stream. A peer that gets the same model again gets other numbers of it."""

    model: Model
    partial: PartialModel  # the first message of it
    times: Counter[PeerId]  # messages of it to each peer


class Compressor:
    """The compression of one node, and the numbers it sent last."""

    def __init__(self, how: str, me: PeerId) -> None:
        self.how = Compression.parse(how)
        self._me = me
        self._start: Model | None = None  # the initial model
        self._sent: dict[str, Vector] = {}  # by stream: each number as it was last sent
        self._messages: Counter[str] = BoundedCounter()  # different messages by stream, of fragments by receiver
        self._last: dict[str, LastSent] = {}  # by stream

    def begin(self, model: Model) -> None:
        """The model that this node starts with, before any training."""
        self._start = model

    def compressed(
        self,
        model: Model,
        to: PeerId,
        round: int | None,
        base: Model | None = None,
        *,
        fetched: bool = False,
        resumes: bool = False,
    ) -> Model:
        """The part of a model that is sent to this peer. `base`: a model that the receivers have. `fetched`: the
        peer asked for it. What one peer fetches, the receivers of the policy's messages have not got, so that
        each part has two streams, with a memory and a turn of their own, which only the first message of a
        model changes. `resumes`: the peer has a beginning of the last message."""
        partial = isinstance(model, PartialModel) or model.layout.part == "predictions"
        if not self.how.kind or partial or not model.layout.size:
            return model
        if self.how.kind == "fragments":
            return self._fragment(model, to, round)
        stream = f"{FETCHED if fetched else ''}{model.layout.part}"
        last = self._last.get(stream)
        again = last is not None and to in last.times and not fetched
        if last is None or again or not _same_array(last.model, model):
            self._last[stream] = last = LastSent(model, self._top(model, base, stream), BoundedCounter())
        if to not in last.times or not resumes:
            last.times[to] += 1
        return self._rest(last, last.times[to] - 1, stream)

    def _fragment(self, model: Model, to: PeerId, round: int | None) -> PartialModel:
        of = self.how.slices
        some = max(1, int(self.how.share * of + 0.5))
        if round is None:
            round = self._messages[to]
            self._messages[to] += 1
        # A new first slice in each cycle: a peer that is met in every k-th round would get the same slices again.
        first = seed_from(*sorted((self._me, to)), round // -(-of // some)) + round * some
        return model.fragment(*((first + i) % of for i in range(some)), of=of)

    def _top(self, model: Model, base: Model | None, stream: str) -> PartialModel:
        n = model.layout.size
        before = base.vector if base is not None else self._before(model, stream)
        count = self._count(n)
        turns = prime(-(-n // -(-count // IN_TURN)))
        turn = self._messages[stream] % turns
        change = model.vector - before
        np.abs(change, out=change)
        change[turn * n // turns : (turn + 1) * n // turns] = np.inf
        places = largest(change, count)
        self._messages[stream] += 1
        if base is None:
            sent = before.copy()  # a checkpoint may have the old one, or be taken now by another thread
            sent[places] = model.vector[places]
            self._sent[stream] = sent
        return PartialModel(model.layout, places, model.vector[places], same=True)

    def _rest(self, last: LastSent, times: int, stream: str) -> PartialModel:
        """What a peer gets that has fetched this model so many times: the numbers that come next by their change,
        and the first again after all. The memory does not count them as sent, because the others have not got
        them: a peer could otherwise keep all changes from the others."""
        n = last.model.layout.size
        count = self._count(n)
        skip = times % -(-n // count) * count
        if not skip:
            return last.partial
        change = np.abs(last.model.vector - self._sent[stream])
        change[last.partial.indices] = np.inf
        places = np.setdiff1d(largest(change, min(skip + count, n)), largest(change, skip), assume_unique=True)
        return PartialModel(last.model.layout, places, last.model.vector[places], same=True)

    def _count(self, n: int) -> int:
        return max(1, int(self.how.share * n + 0.5))

    def _before(self, model: Model, stream: str) -> Vector:
        known, part = self._sent.get(stream), model.layout.part
        if known is not None and known.size == model.layout.size:
            return known
        if self._start is not None and self._start.layout.of(part) == model.layout:
            return self._start.of(part).vector
        return np.zeros(model.layout.size, np.float32)

    # -- checkpoints and segments --------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any] | None:
        """The state for a checkpoint; None: there is none."""
        return {"sent": dict(self._sent), "messages": Counter(self._messages)} if self.how.kind else None

    def restore(self, row: Mapping[str, Any] | None) -> None:
        if row and self.how.kind:
            self._sent = dict(row["sent"])
            self._messages.update(row["messages"])

    def dump(self) -> dict[str, Any]:
        """The state for the next segment of a simulation, in which the last model may be sent to further peers."""
        last = {stream: (model, partial, Counter(times)) for stream, (model, partial, times) in self._last.items()}
        return {**(self.snapshot() or {}), "last": last}

    def load(self, row: Mapping[str, Any]) -> None:
        self.restore(row)
        for stream, (model, partial, times) in row["last"].items():
            self._last[stream] = LastSent(model, partial, BoundedCounter())
            self._last[stream].times.update(times)


def largest(numbers: Vector, count: int) -> Indices:
    """The places of the `count` largest numbers, ascending. Several times as fast as argpartition, which moves an
    index of 8 bytes with each number, and a sort."""
    least = np.partition(numbers, numbers.size - count)[numbers.size - count]
    above = np.flatnonzero(numbers > least)
    equal = np.flatnonzero(numbers == least)[: count - above.size]
    return np.sort(np.concatenate((above, equal)), kind="stable").astype(np.int32)


def prime(least: int) -> int:
    """The smallest prime from `least` on. With so many turns, a peer that gets every k-th message, because others
    get those between, gets all turns. If k and the number of turns had a common factor, it would miss some."""
    while least < 2 or any(least % d == 0 for d in range(2, isqrt(least) + 1)):
        least += 1
    return least


def _same_array(one: Model, other: Model) -> bool:
    """Whether the models share their numbers; parts of the same model do."""
    a, b = (m.vector.__array_interface__["data"][0] for m in (one, other))
    return bool(a == b) and one.layout == other.layout
