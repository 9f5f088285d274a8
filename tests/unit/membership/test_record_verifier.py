"""Verifying many records and fetching credentials, on a real event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from pfl_node.errors import PeerGone, Refused
from pfl_node.membership.member import Member
from pfl_node.membership.record_verifier import CREDENTIALS_LIMIT, RecordVerifier, batched
from pfl_node.membership.signatures import Proof
from tests.unit.membership.keyed_members import Keyed

SEED = "10.0.0.1:7000"


class Credentials:
    """What the node at an address answers."""

    def __init__(self, keyed: Keyed) -> None:
        self.known = {id: keyed.credential(id) for id in keyed.ids}
        self.calls: list[int] = []
        self.gone = False

    async def fetch(self, address: str, ids: Sequence[str]) -> list[bytes]:
        self.calls.append(len(ids))
        if self.gone:
            raise PeerGone(address, "gone")
        return [self.known[id] for id in ids if id in self.known]


def record(keyed: Keyed, number: int) -> Member:
    id = keyed.ids[number]
    return keyed.sign(id).sign(Member(id, f"n{number}", f"10.0.0.1:{8000 + number}", incarnation=1))


def test_missing_credentials_are_fetched_once_and_the_loop_goes_on_meanwhile() -> None:
    async def scenario() -> None:
        keyed = Keyed(60)
        mine, source = keyed.sign(keyed.ids[0]), Credentials(keyed)
        verifier = RecordVerifier(mine, source.fetch)
        members = [record(keyed, n) for n in range(1, 60)]
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        await verifier.verify(members, "seed", SEED)
        counting.cancel()
        assert turns >= 59 // 8 * 3  # of looking at records, adding credentials and verifying
        assert source.calls == [59]
        assert {mine.verify(member) for member in members} == {Proof.GENUINE}
        await verifier.verify(members, "seed", SEED)
        assert source.calls == [59]

    asyncio.run(scenario())


def test_a_member_that_lacks_a_credential_is_not_asked_again_at_once() -> None:
    async def scenario() -> None:
        keyed = Keyed(4)
        source = Credentials(keyed)
        source.known.clear()
        verifier = RecordVerifier(keyed.sign(keyed.ids[0]), source.fetch)
        for _ in range(3):
            await verifier.verify([record(keyed, 1)], "seed", SEED)
            await verifier.verify([record(keyed, 2)], "seed", "10.0.0.2:7000")  # another address does not help
        assert source.calls == [1]
        await verifier.verify([record(keyed, 2)], "other", "10.0.0.3:7000")
        assert source.calls == [1, 1]
        source.gone = True
        await verifier.verify([record(keyed, 3)], "third", "10.0.0.4:7000")
        assert source.calls == [1, 1, 1]

    asyncio.run(scenario())


def test_a_member_that_stalls_is_asked_once_and_does_not_keep_others_from_answering() -> None:
    async def scenario() -> None:
        keyed = Keyed(3)
        mine, source = keyed.sign(keyed.ids[0]), Credentials(keyed)
        stalled: list[str] = []
        begun = asyncio.Event()

        async def fetch(address: str, ids: Sequence[str]) -> list[bytes]:
            if address != SEED:
                return await source.fetch(address, ids)
            stalled.extend(ids)
            begun.set()
            await asyncio.Event().wait()
            return []

        verifier = RecordVerifier(mine, fetch)
        records = [record(keyed, 1), record(keyed, 2)]
        waiting = [asyncio.create_task(verifier.verify(records, "eve", SEED)) for _ in range(5)]
        await begun.wait()
        verifier._asked.clear()  # a second later
        await verifier.verify(records, "bob", "10.0.0.2:7000")
        assert {mine.verify(one) for one in records} == {Proof.GENUINE}
        assert stalled == [keyed.ids[1], keyed.ids[2]]
        await asyncio.gather(*waiting[1:])
        waiting[0].cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    asyncio.run(scenario())


def test_an_invalid_credential_is_refused_and_the_rest_is_not_looked_at() -> None:
    async def scenario() -> None:
        keyed, theirs = Keyed(3), Keyed(1, ca="another CA")
        source = Credentials(keyed)
        source.known[keyed.ids[1]] = theirs.credential(theirs.ids[0])
        mine = keyed.sign(keyed.ids[0])
        verifier = RecordVerifier(mine, source.fetch)
        with pytest.raises(Refused, match="another CA"):
            await verifier.verify([record(keyed, 1), record(keyed, 2)], "seed", SEED)
        assert mine.verify(record(keyed, 2)) is Proof.UNKNOWN

    asyncio.run(scenario())


def test_what_is_served_is_bounded() -> None:
    keyed = Keyed(2)
    mine = keyed.knowing_all(keyed.ids[0])
    verifier = RecordVerifier(mine, Credentials(keyed).fetch)
    assert verifier.serve([keyed.ids[1], "nobody"]) == [keyed.credential(keyed.ids[1])]
    assert len(verifier.serve([keyed.ids[1]] * 5000)) == CREDENTIALS_LIMIT


def test_batches_have_the_size_asked_for() -> None:
    assert list(batched("abcde", 2)) == [("a", "b"), ("c", "d"), ("e",)]
