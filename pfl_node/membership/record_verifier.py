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

BATCH = 8  # signatures to verify before the event loop does other work; about 1 ms
CREDENTIALS_LIMIT = 128  # per call; each has at most 8 kB
PAUSE = 5.0  # seconds for which an address is not asked again after it did not have a credential
PAUSES_LIMIT = 256  # addresses

Fetch = Callable[[str, Sequence[str]], Awaitable[list[bytes]]]  # address, ids


class RecordVerifier:
    def __init__(self, signed: Signed, fetch: Fetch) -> None:
        self._signed = signed
        self._fetch = fetch
        self._asked: set[str] = set()  # members whose credentials are being fetched
        self._paused: dict[str, float] = {}  # by address: until when it is not asked

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
        if asyncio.get_running_loop().time() < self._paused.get(address, 0.0):
            return
        self._pause(address)  # until it has answered
        self._asked |= missing.keys()
        try:
            for ids in batched(missing, CREDENTIALS_LIMIT):
                await self._add_all(await self._fetch(address, ids))
        except PeerGone:
            return  # the members are left out; another message will name them again
        finally:
            self._asked -= missing.keys()
        proofs: set[Proof] = set()
        for several in batched(missing.values(), BATCH):
            proofs.update(map(self._signed.verify, several))
            await asyncio.sleep(0)
        if not proofs & {Proof.UNKNOWN, Proof.FORGED}:
            self._paused.pop(address, None)

    async def _add_all(self, credentials: Sequence[bytes]) -> None:
        for batch in batched(credentials[:CREDENTIALS_LIMIT], BATCH):
            for credential in batch:
                self._signed.keys.add(credential)
            await asyncio.sleep(0)

    def _pause(self, address: str) -> None:
        if len(self._paused) >= PAUSES_LIMIT:
            self._paused.clear()
        self._paused[address] = asyncio.get_running_loop().time() + PAUSE


def batched(items: Iterable[T], size: int) -> Iterator[tuple[T, ...]]:
    """As in itertools since Python 3.12."""
    source = iter(items)
    while batch := tuple(islice(source, size)):
        yield batch
