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
CREDENTIALS_LIMIT = 128  # credentials per call; each has at most 8 kB
PAUSE = 5.0  # seconds for which a member is not asked again after it did not have a credential
ASKED = 1.0  # seconds before another member is asked for the same credential
TABLE_LIMIT = 16384

Fetch = Callable[[str, Sequence[str]], Awaitable[list[bytes]]]  # address, ids


class RecordVerifier:
    """At most one fetch per member at a time: a member that stalls or sends nothing delays only its own news."""

    def __init__(self, signed: Signed, fetch: Fetch) -> None:
        self._signed = signed
        self._fetch = fetch
        self._fetching: set[str] = set()  # members that are being asked for credentials
        self._paused: dict[str, float] = {}  # by member: until when it is not asked again
        self._asked: dict[str, float] = {}  # members whose credentials were requested, until when

    async def verify(self, members: Iterable[Member], by: str, address: str) -> None:
        """Verify the records that `by` sent; fetch missing credentials from its address. Raises Refused if one is
        invalid."""
        missing: dict[str, Member] = {}
        for batch in batched(members, BATCH):
            proofs = [self._signed.verify(member) for member in batch]
            if Proof.FORGED in proofs:  # the state machine stops there, too
                return
            for member, proof in zip(batch, proofs, strict=True):
                if proof is Proof.UNKNOWN or (proof is Proof.GENUINE and self._signed.outdated(member)):
                    missing[member.id] = member
            await asyncio.sleep(0)
        now = asyncio.get_running_loop().time()
        missing = {id: member for id, member in missing.items() if self._asked.get(id, 0.0) <= now}
        if missing and by not in self._fetching and self._paused.get(by, 0.0) <= now:
            await self._fetch_and_verify(missing, by, address)

    def serve(self, ids: Iterable[str]) -> list[bytes]:
        """The known credentials of these members."""
        found = map(self._signed.keys.credential, islice(ids, CREDENTIALS_LIMIT))
        return [credential for credential in found if credential is not None]

    def add(self, credential: bytes) -> None:
        """Raises Refused."""
        self._signed.keys.add(credential)

    async def _fetch_and_verify(self, missing: dict[str, Member], by: str, address: str) -> None:
        now = asyncio.get_running_loop().time()
        _note(self._asked, dict.fromkeys(missing, now + ASKED))
        self._fetching.add(by)
        complete = False
        try:
            for ids in batched(missing, CREDENTIALS_LIMIT):
                await self._add_all(await self._fetch(address, ids))
            complete = await self._all_genuine(missing.values())
        except PeerGone:
            return  # the members are left out; another message will name them again
        finally:
            self._fetching.discard(by)
            if not complete:
                _note(self._paused, {by: asyncio.get_running_loop().time() + PAUSE})

    async def _add_all(self, credentials: Sequence[bytes]) -> None:
        for batch in batched(credentials[:CREDENTIALS_LIMIT], BATCH):
            for credential in batch:
                self._signed.keys.add(credential)
            await asyncio.sleep(0)

    async def _all_genuine(self, members: Iterable[Member]) -> bool:
        for batch in batched(members, BATCH):
            if {Proof.UNKNOWN, Proof.FORGED} & set(map(self._signed.verify, batch)):
                return False
            await asyncio.sleep(0)
        return True


def _note(table: dict[str, float], entries: dict[str, float]) -> None:
    """Add entries to a table of bounded size."""
    if len(table) + len(entries) > TABLE_LIMIT:
        table.clear()
    table.update(entries)


def batched(items: Iterable[T], size: int) -> Iterator[tuple[T, ...]]:
    """`itertools.batched`, which exists since Python 3.12."""
    source = iter(items)
    while batch := tuple(islice(source, size)):
        yield batch
