"""When a node counts as one that receives or sends nothing."""

from __future__ import annotations

from pfl_node.ops.exchange import ROUNDS, SECONDS, Exchange


def after(
    rounds: int, *, every: float, received: int = 0, sent: int = 0, failed: bool = False, peers: bool = True
) -> Exchange:
    exchange = Exchange()
    exchange.begin(100.0)
    for number in range(1, rounds + 1):
        exchange.round(received=received, sent=sent, failed=failed, peers=peers, now=100.0 + number * every)
    return exchange


def test_several_rounds_and_some_seconds_without_a_model_are_nothing() -> None:
    assert after(ROUNDS, every=SECONDS / ROUNDS).receives_nothing


def test_short_rounds_are_given_some_seconds_and_long_ones_some_rounds() -> None:
    assert not after(10 * ROUNDS, every=0.01).receives_nothing
    assert not after(ROUNDS - 1, every=600.0).receives_nothing


def test_a_node_without_peers_misses_nothing() -> None:
    assert not after(10 * ROUNDS, every=10.0, peers=False).receives_nothing


def test_a_model_clears_it() -> None:
    exchange = after(ROUNDS, every=10.0)
    assert exchange.receives_nothing
    exchange.round(received=1, sent=0, failed=False, peers=True, now=1000.0)
    assert not exchange.receives_nothing
    assert exchange.received.moved_at == 1000.0


def test_peers_that_come_late_are_waited_for_from_then_on() -> None:
    exchange = after(ROUNDS, every=10.0, peers=False)
    exchange.round(received=0, sent=0, failed=False, peers=True, now=10_000.0)
    assert not exchange.receives_nothing


def test_that_nobody_wants_a_model_is_no_failure_to_send_but_failed_calls_are() -> None:
    assert not after(10 * ROUNDS, every=10.0).sends_nothing
    assert after(ROUNDS, every=10.0, failed=True).sends_nothing
