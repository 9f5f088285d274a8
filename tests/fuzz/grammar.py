"""Messages made and changed field by field, from their descriptors alone. Chance is handed in."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from random import Random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from tests.fuzz.surface import Descriptor, Field, kind_of

F = FieldDescriptor
DEPTH = 4
BITS = {  # of the integers, and whether they have a sign
    **dict.fromkeys((F.TYPE_INT32, F.TYPE_SINT32, F.TYPE_SFIXED32), (32, True)),
    **dict.fromkeys((F.TYPE_INT64, F.TYPE_SINT64, F.TYPE_SFIXED64), (64, True)),
    **dict.fromkeys((F.TYPE_UINT32, F.TYPE_FIXED32), (32, False)),
    **dict.fromkeys((F.TYPE_UINT64, F.TYPE_FIXED64), (64, False)),
}
FLOATS = (0.0, -0.0, 1.0, -1.0, math.nan, math.inf, -math.inf, 1e308, -1e308, 5e-324, 0.1)
WORDS = (
    "",
    "a",
    "0",
    "node",
    "é" * 8,
    "\x00",
    "%s%n{}",
    "../../x",
    "x" * 64,
    "x" * 65,
    "\U0001f600" * 20,
    "\n",
    "-1",
)
KEPT = 64  # values of one field


class Grammar:
    """`learn` from real messages; then `make` new ones and `mutate` them."""

    def __init__(self) -> None:
        self._seen: defaultdict[str, list[Any]] = defaultdict(list)  # by the name of the field
        self._words: list[str] = []

    def learn(self, message: Message) -> None:
        for _, field, value in walk(message):
            seen = self._seen[field.name]
            if field.type != F.TYPE_MESSAGE and value not in seen and len(seen) < KEPT:
                seen.append(value)
                self._words += [value] if isinstance(value, str) else []

    def make(self, descriptor: Descriptor, chance: Random, *, sound: float = 0.5, depth: int = 0) -> Message:
        """`sound`: how likely a value is one that was seen in this field."""
        message = kind_of(descriptor)()
        for field in descriptor.fields:
            if chance.random() < (0.9 if sound > 0.5 else 0.6):
                self._set(message, field, chance, sound, depth)
        return message

    def mutate(self, message: Message, chance: Random) -> None:
        """One field anywhere in it is changed, emptied, or set where it was not."""
        places = [message, *(value for _, field, value in walk(message) if isinstance(value, Message))]
        place = chance.choice(places)
        fields: list[Field] = list(place.DESCRIPTOR.fields)
        if not fields:
            return
        field = chance.choice(fields)
        if chance.random() < 0.15:
            place.ClearField(field.name)
        else:
            self._set(place, field, chance, sound=0.2, depth=DEPTH - 1)

    def _set(self, message: Message, field: Field, chance: Random, sound: float, depth: int) -> None:
        if field.message_type is not None and depth >= DEPTH:
            return
        if _is_map(field):
            for _ in range(_many(chance)):
                self._put_entry(message, field, chance, sound)
        elif field.is_repeated:
            message.ClearField(field.name)
            for _ in range(_many(chance) if depth < DEPTH - 1 else chance.randrange(4)):
                value = self._value(field, chance, sound, depth)
                getattr(message, field.name).append(value)
        elif field.message_type is not None:
            made = self.make(field.message_type, chance, sound=sound, depth=depth + 1)
            getattr(message, field.name).CopyFrom(made)
        else:
            setattr(message, field.name, self._value(field, chance, sound, depth))

    def _put_entry(self, message: Message, field: Field, chance: Random, sound: float) -> None:
        key, value = field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]
        if value.message_type is None:
            entries = getattr(message, field.name)
            entries[self._value(key, chance, sound, DEPTH)] = self._value(value, chance, sound, DEPTH)

    def _value(self, field: Field, chance: Random, sound: float, depth: int) -> Any:
        if field.message_type is not None:
            return self.make(field.message_type, chance, sound=sound, depth=depth + 1)
        if (seen := self._seen.get(field.name)) and chance.random() < sound:
            return chance.choice(seen)
        if field.type in BITS:
            return _integer(*BITS[field.type], chance)
        match field.type:
            case F.TYPE_BOOL:
                return chance.random() < 0.5
            case F.TYPE_ENUM:
                return chance.choice((*field.enum_type.values_by_number, -1, 99, 2**31 - 1))
            case F.TYPE_DOUBLE | F.TYPE_FLOAT:
                return chance.choice((*FLOATS, chance.uniform(-10, 10)))
            case F.TYPE_BYTES:
                return chance.randbytes(chance.choice((0, 1, 4, 100, 5000)))
        return self._word(chance)

    def _word(self, chance: Random) -> str:
        """Any word that was seen somewhere, an odd one, or one that nobody has said before."""
        if self._words and chance.random() < 0.4:
            return chance.choice(self._words)
        if chance.random() < 0.02:
            return "x" * chance.choice((300, 5000, 70_000))
        new = f"{chance.getrandbits(64):016x}"
        return chance.choice((*WORDS, f"n{chance.randrange(50)}", *[new] * 6))


def walk(message: Message) -> Iterator[tuple[Message, Field, Any]]:
    """Every value that is set, those of messages within it included, with its field and its owner."""
    for field, value in message.ListFields():
        if _is_map(field):
            continue
        for each in value if field.is_repeated else (value,):
            yield message, field, each
            if isinstance(each, Message):
                yield from walk(each)


def _is_map(field: Field) -> bool:
    return bool(field.message_type is not None and field.message_type.GetOptions().map_entry)


def _many(chance: Random) -> int:
    return chance.choice((0, 1, 1, 2, 3, 3, 20)) if chance.random() < 0.99 else chance.choice((300, 5000))


def _integer(bits: int, signed: bool, chance: Random) -> int:
    """Near a power of two, where it overflows, or small."""
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    near = (1 << chance.randrange(bits)) + chance.choice((-1, 0, 1))
    found = chance.choice((0, 1, 2, low, high, near, -near, chance.randrange(100)))
    return min(max(found, low), high)
