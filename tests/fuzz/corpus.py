"""Real messages of a real swarm, by their types, and the words that are used in them."""

from __future__ import annotations

from collections import defaultdict
from random import Random

from google.protobuf.message import DecodeError, Message

from tests.fuzz.grammar import Grammar, walk
from tests.fuzz.surface import Descriptor, Surface, kind_of

Stream = tuple[bytes, ...]  # what one call brings; most bring one message
KEPT = 40  # streams of one type


class Corpus:
    def __init__(self, surface: Surface) -> None:
        self.surface = surface
        self.grammar = Grammar()
        self.round: int | None = (
            None  # where the swarm is now: what speaks of a round long past is refused at once
        )
        self._streams: defaultdict[str, list[Stream]] = defaultdict(list)

    def add(self, kind: Descriptor, stream: Stream) -> None:
        """What is not of this kind is no real message, and is left out."""
        kept = self._streams[kind.full_name]
        if not stream or len(kept) >= KEPT or stream in kept:
            return
        try:
            for data in stream:
                self.grammar.learn(kind_of(kind).FromString(data))
        except DecodeError:
            return
        kept.append(stream)

    def count(self, kind: Descriptor) -> int:
        return len(self._streams.get(kind.full_name, ()))

    def first(self, kind: Descriptor) -> Stream | None:
        """The first recorded stream of this type."""
        return next(iter(self._streams.get(kind.full_name, ())), None)

    def stream(self, kind: Descriptor, chance: Random) -> Stream:
        """A recorded one; where nobody sent any, one of words that were used in such fields."""
        if kept := self._streams.get(kind.full_name):
            first, *rest = chance.choice(kept)
            return (self._of_today(kind, first, chance), *rest)
        return (self.grammar.make(kind, chance, sound=1.0).SerializeToString(),)

    def _of_today(self, kind: Descriptor, data: bytes, chance: Random) -> bytes:
        drawn = chance.randrange(-1, 4)  # whether it is used or not, so that what follows is the same
        if self.round is None or chance.random() < 0.3:
            return data
        message = kind_of(kind).FromString(data)
        found = [owner for owner, field, _ in walk(message) if field.name == "round"]
        for owner in found:
            owner.round = max(0, self.round + drawn)  # type: ignore[attr-defined]
        return message.SerializeToString() if found else data

    def any(self, chance: Random) -> Stream:
        """Of any type at all."""
        return chance.choice(self._streams[chance.choice(sorted(k for k, kept in self._streams.items() if kept))])


def unbraided(kind: Descriptor, data: bytes, chance: Random) -> Stream:
    """The same in several messages: a field in each, bytes in several. As a stream it says no less."""
    message = kind_of(kind).FromString(data)
    pieces: list[Message] = []
    for field, value in message.ListFields():
        if isinstance(value, bytes) and value:
            step = -(-len(value) // chance.randrange(1, 5))
            values = [value[at : at + step] for at in range(0, len(value), step)]
            pieces += [kind_of(kind)(**{field.name: each}) for each in values]
        else:
            piece = kind_of(kind)()
            piece.CopyFrom(message)
            for other, _ in message.ListFields():
                if other.number != field.number:
                    piece.ClearField(other.name)
            pieces.append(piece)
    return tuple(piece.SerializeToString() for piece in pieces)
