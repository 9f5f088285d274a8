"""A parser for the subset of DER in certificates: tags, lengths, times and names. Does not check signatures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

SEQUENCE, SET, INTEGER, OID, OCTETS = 0x30, 0x31, 0x02, 0x06, 0x04
UTC_TIME = 0x17
VERSION, EXTENSIONS, DNS_NAME = 0xA0, 0xA3, 0x82


@dataclass(frozen=True, slots=True)
class Item:
    """One element; `whole` includes the tag and the length."""

    tag: int
    content: bytes
    whole: bytes

    def __iter__(self) -> Iterator[Item]:
        return items(self.content)

    def children(self, tag: int = SEQUENCE) -> list[Item]:
        if self.tag != tag:
            raise ValueError(f"tag {self.tag:#x} instead of {tag:#x}")
        return list(self)


def items(data: bytes) -> Iterator[Item]:
    """The elements in a sequence. Raises ValueError."""
    at = 0
    while at < len(data):
        item = _item(data, at)
        at += len(item.whole)
        yield item


def first(data: bytes) -> Item:
    return _item(data, 0)


def _item(data: bytes, at: int) -> Item:
    if len(data) < at + 2:
        raise ValueError("truncated")
    tag, size, start = data[at], data[at + 1], at + 2
    if size >= 0x80:
        count = size & 0x7F
        if not 0 < count <= 4 or len(data) < start + count:
            raise ValueError("invalid length")
        size = int.from_bytes(data[start : start + count])
        start += count
    if len(data) < start + size:
        raise ValueError("truncated")
    return Item(tag, data[start : start + size], data[at : start + size])


def time(item: Item) -> datetime:
    """A UTCTime has two digits for the year, a GeneralizedTime four."""
    text = item.content.decode("ascii")
    if item.tag == UTC_TIME:
        text = ("19" if int(text[:2]) >= 50 else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def names(name: Item) -> dict[bytes, str]:
    """The parts of a distinguished name by their encoded OID; the first of each."""
    found: dict[bytes, str] = {}
    for part in name.children():
        for pair in part.children(SET):
            oid, value, *_ = pair.children()
            found.setdefault(oid.content, value.content.decode("utf-8", "replace"))
    return found
