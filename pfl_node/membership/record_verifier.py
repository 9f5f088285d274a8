"""Verifies the records of a message without blocking the event loop, and fetches the credentials that it needs.

The state machine verifies every record itself; it finds the results of this work in the cache of `Signed`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

from pfl_node.errors import PeerGone
from pfl_node.membership.member import Member
from pfl_node.membership.signatures import Proof, Signed

T = TypeVar("T")

BATCH = 16  # signatures to verify before the event loop does other work; about 2 ms
CREDENTIALS_LIMIT = 512  # per call

Fetch = Callable[[str, Sequence[str]], Awaitable[list[bytes]]]  # address, ids


class RecordVerifier:
    def __init__(self, signed: Signed, fetch: Fetch) -> None:
        self._signed = signed
        self._fetch = fetch
        self._asked: set[str] = set()  # members whose credentials are being fetched

    async def verify(self, members: Iterable[Member], address: str) -> None:
        """Verify these records; fetch missing credentials from `address`. Raises Refused if one is invalid."""
        missing: dict[str, Member] = {}
        for batch in batched(members, BATCH):
            proofs = [self._signed.verify(member) for member in batch]
            if Proof.FORGED in proofs:  # the state machine stops there, too
                return
            for member, proof in zip(batch, proofs, strict=True):
                if proof is Proof.UNKNOWN or (proof is Proof.GENUINE and self._signed.outdated(member)):
                    missing[member.id] = member
            await asyncio.sleep(0)
        if missing := {id: member for id, member in missing.items() if id not in self._asked}:
            await self._fetch_and_verify(missing, address)

    def serve(self, ids: Iterable[str]) -> list[bytes]:
        """The known credentials of these members."""
        found = map(self._signed.keys.credential, islice(ids, CREDENTIALS_LIMIT))
        return [credential for credential in found if credential is not None]

    def add(self, credential: bytes) -> None:
        """Raises Refused."""
        self._signed.keys.add(credential)

    async def _fetch_and_verify(self, missing: dict[str, Member], address: str) -> None:
        self._asked |= missing.keys()
        try:
            for ids in batched(missing, CREDENTIALS_LIMIT):
                for batch in batched((await self._fetch(address, ids))[:CREDENTIALS_LIMIT], BATCH):
                    for credential in batch:
                        self._signed.keys.add(credential)
                    await asyncio.sleep(0)
        except PeerGone:
            return  # the members are left out; another message will name them again
        finally:
            self._asked -= missing.keys()
        for several in batched(missing.values(), BATCH):
            if Proof.FORGED in map(self._signed.verify, several):
                return
            await asyncio.sleep(0)


def batched(items: Iterable[T], size: int) -> Iterator[tuple[T, ...]]:
    """As in itertools since Python 3.12."""
    source = iter(items)
    while batch := tuple(islice(source, size)):
        yield batch
