"""One case for every (seed, number): what is sent where, and how. The same recording gives the same case."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Literal

from tests.fuzz import http2
from tests.fuzz.address_filter import AddressFilter, places
from tests.fuzz.byte_mutations import bent, noise, spliced
from tests.fuzz.corpus import Corpus, Stream, unbraided
from tests.fuzz.surface import Call, kind_of

Way = Literal["rpc", "udp", "tcp"]
Metadata = tuple[tuple[str, str | bytes], ...]
Manner = Literal["whole", "open", "cancelled"]  # does its sender finish, stop in the middle, or hang up?


@dataclass(frozen=True, slots=True)
class Case:
    """What is sent: over gRPC to a path, as datagrams, or as bytes on a bare connection."""

    number: int
    kind: str
    way: Way
    path: str = ""
    messages: Stream = ()
    manner: Manner = "whole"
    metadata: Metadata = ()
    answers_many: bool = False
    asks_one: bool = True


@dataclass(frozen=True, slots=True)
class CaseGenerator:
    """Makes cases. `seed` and the number of a case decide it."""

    seed: int
    corpus: Corpus
    filter: AddressFilter
    addressed: str  # HOST:PORT of the node, as HTTP/2 wants it
    kinds: dict[str, int] = field(default_factory=lambda: dict(WEIGHTS))

    def case(self, number: int) -> Case:
        chance = Random(f"{self.seed}/{number}")
        kind = chance.choices(list(self.kinds), list(self.kinds.values()))[0]
        if kind == "http2":
            garbage = http2.garbage(chance, self.addressed, self._request(chance))
            return Case(number, kind, "tcp", messages=garbage)
        if kind.startswith("udp "):
            made = WAYS[kind.removeprefix("udp ")](self, chance, Call("", self.corpus.surface.packet))
            data = self.filter.within(made[0], self.corpus.surface.packet)
            return Case(number, kind, "udp", messages=(data,))
        call = chance.choice(self.corpus.surface.calls)
        messages = WAYS[kind](self, chance, call)
        return self._over_rpc(number, kind, call, messages, chance)

    def _over_rpc(self, number: int, kind: str, call: Call, messages: Stream, chance: Random) -> Case:
        manner: Manner = chance.choices(("whole", "open", "cancelled"), (94, 3, 3))[0]
        path = call.path
        metadata: Metadata = ()
        if kind == "odd":
            path = chance.choice(
                (call.path, call.path.lower(), call.path + "s", "/", "//", f"/{chance.random()}/x")
            )
            metadata = chance.choice(ODD_METADATA)
        return Case(
            number,
            kind,
            "rpc",
            path,
            tuple(self.filter.within(data, call.request) for data in messages),
            manner,
            metadata,
            call.answers_many,
            not call.asks_many,
        )

    def _request(self, chance: Random) -> tuple[str, bytes]:
        """A real one for a call below gRPC. It is bent after this, so it must not name any place."""
        call = chance.choice(self.corpus.surface.calls)
        data = self.corpus.stream(call.request, chance)[0]
        return call.path, b"" if places(data, call.request)[1] else data

    # -- the ways to make what is sent ---------------------------------------------------------------------

    def noise(self, chance: Random, call: Call) -> Stream:
        return (noise(chance),)

    def made(self, chance: Random, call: Call) -> Stream:
        """Every field as it comes."""
        sound = chance.choice((0.0, 0.5, 0.9))
        return (self.corpus.grammar.make(call.request, chance, sound=sound).SerializeToString(),)

    def mutated(self, chance: Random, call: Call) -> Stream:
        """A real message of which a field or two say something else."""
        first, *rest = self.corpus.stream(call.request, chance)
        message = kind_of(call.request).FromString(first)
        for _ in range(chance.choice((1, 1, 2, 5))):
            self.corpus.grammar.mutate(message, chance)
        return (message.SerializeToString(), *rest)

    def bent(self, chance: Random, call: Call) -> Stream:
        """A real message whose bytes came to harm, or two that were mixed up."""
        messages = list(self.corpus.stream(call.request, chance))
        at = chance.randrange(len(messages))
        if chance.random() < 0.2:
            messages[at] = spliced(messages[at], self.corpus.any(chance)[0], chance)
        else:
            messages[at] = bent(messages[at], chance)
        return tuple(messages)

    def replayed(self, chance: Random, call: Call) -> Stream:
        """A real message once more, or where another belongs."""
        return self.corpus.stream(call.request, chance) if chance.random() < 0.7 else self.corpus.any(chance)

    def streamed(self, chance: Random, call: Call) -> Stream:
        """A real message in pieces, which are lost, doubled, swapped, mixed with others'; or too many, or none."""
        whole = self.corpus.stream(call.request, chance)
        messages = [m for each in whole for m in unbraided(call.request, each, chance)]
        for _ in range(chance.choice((0, 0, 1, 1, 2))):
            messages = _disordered(messages, self, chance, call)
        return tuple(messages)


def _disordered(messages: list[bytes], generator: CaseGenerator, chance: Random, call: Call) -> list[bytes]:
    match chance.randrange(6):
        case 0:
            return messages[: chance.randrange(len(messages) + 1)]
        case 1:
            return [*messages, *messages]
        case 2:
            return chance.sample(messages, len(messages))
        case 3:
            return [*messages, *generator.corpus.stream(call.request, chance)]
        case 4 if messages:
            messages[chance.randrange(len(messages))] = bent(chance.choice(messages), chance)
            return messages
        case 5:
            return [m for m in messages if chance.random() < 0.7]
    return []


WAYS: dict[str, Callable[[CaseGenerator, Random, Call], Stream]] = {
    "noise": CaseGenerator.noise,
    "made": CaseGenerator.made,
    "mutated": CaseGenerator.mutated,
    "bent": CaseGenerator.bent,
    "replayed": CaseGenerator.replayed,
    "streamed": CaseGenerator.streamed,
    "odd": CaseGenerator.mutated,
}
WEIGHTS: dict[str, int] = {  # a datagram costs a tenth of what a call does, and nobody has to show who sent it
    "noise": 4,
    "made": 6,
    "mutated": 10,
    "bent": 7,
    "replayed": 2,
    "streamed": 5,
    "odd": 2,
    "udp noise": 12,
    "udp made": 12,
    "udp mutated": 18,
    "udp bent": 14,
    "udp replayed": 4,
    "http2": 4,
}
ODD_METADATA: tuple[Metadata, ...] = (
    (),
    (("x", "y" * 6000),),
    (("x-bin", bytes(range(256))),),
    (("pfl-reason", "garbage"), ("pfl-reason", "flood")),
    tuple((f"k{n}", "v") for n in range(100)),
    (("x", "y" * 30_000),),  # more than gRPC takes
)
