"""Secrets between two nodes."""

from __future__ import annotations

from pfl_node.security.key_agreement import KeyAgreement
from pfl_node.types import PeerId

A, B, C, D = (PeerId(id) for id in "abcd")


def swarm(*ids: PeerId) -> dict[PeerId, KeyAgreement]:
    made: dict[PeerId, KeyAgreement] = {}

    def public_of(peer: PeerId) -> bytes | None:
        return made[peer].public if peer in made else None

    made.update({id: KeyAgreement(id, public_of) for id in ids})
    return made


def test_two_nodes_share_a_secret_that_a_third_one_does_not_have() -> None:
    keys = swarm(A, B, C)
    assert keys[A].secret(B) == keys[B].secret(A)
    assert len({keys[A].secret(B), keys[B].secret(C), keys[C].secret(A)}) == 3


def test_a_restarted_node_shares_another_secret() -> None:
    keys = swarm(A, B)
    before = keys[A].secret(B)
    keys[B] = KeyAgreement(B, lambda peer: keys[peer].public)
    after = keys[A].secret(B)
    assert after == keys[B].secret(A)
    assert after != before


def test_there_is_no_secret_with_a_peer_that_states_no_key_or_one_that_makes_it_public() -> None:
    stated = {B: b"", C: bytes(32)}
    me = KeyAgreement(A, stated.get)
    assert [me.secret(peer) for peer in (B, C, D)] == [None] * 3


def test_a_peer_that_states_the_key_of_another_one_does_not_share_its_secret() -> None:
    """Otherwise the two noises of C's neighbour B, one for B and one for the copy of its key, would cancel."""
    keys = swarm(A, B)
    stated = {B: keys[B].public, D: keys[B].public}
    between = KeyAgreement(C, stated.get)
    assert between.secret(B) != between.secret(D)
