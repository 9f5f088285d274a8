"""The verbs that inspect a running node: status, peers, ping, wait."""

import time
from collections.abc import Callable
from statistics import median
from typing import Annotated, Any, Literal, get_args

import typer

from pfl_node.cli.options import Address, Format
from pfl_node.cli.output import as_facts, as_json, as_table
from pfl_node.cli.remote import REFUSED, Remote, connected
from pfl_node.errors import PeerGone

Timeout = Annotated[float, typer.Option(min=0.001, metavar="SECONDS", help="Timeout of a call.")]
State = Literal["starting", "joining", "training", "done", "leaving"]
STATES = get_args(State)  # in the order in which a node passes through them
NOT_SERVING = ("starting", "joining", "done", "leaving")
FINAL = ("done", "leaving")
WAIT_CALL = 5.0  # seconds; a call of `wait` may take this long on a busy machine, whatever its own timeout

Peers = Annotated[int | None, typer.Option(min=0, metavar="N", help="Until N other nodes are alive.")]
Round = Annotated[int | None, typer.Option(min=0, metavar="N", help="Until this round is reached.")]
Reached = Annotated[State | None, typer.Option(help="Until this state is reached.")]
Patience = Annotated[float, typer.Option(min=0, metavar="SECONDS", help="Give up after this time.")]


def status(address: Address, format: Format = "table", timeout: Timeout = 3.0) -> None:
    """Show the state of a node."""
    with connected(address, timeout) as node:
        facts = node.status()
    if format == "json":
        as_json(facts)
        return
    health = facts.pop("health", None)
    facts.pop("machine", None)  # `pfl-node doctor` prints these checks
    as_facts(facts | ({"health": _health(health)} if isinstance(health, dict) else {}))


def _health(health: dict[str, Any]) -> str:
    """The health of a node in one line; `pfl-node doctor` prints the checks in full."""
    parts = [str(health.get("level"))]
    if reason := health.get("reason"):
        parts.append(f"{reason}; {todo}" if (todo := health.get("todo")) else str(reason))
    return ": ".join(parts)


def peers(address: Address, format: Format = "table", timeout: Timeout = 3.0) -> None:
    """List the members that a node knows, including itself."""
    with connected(address, timeout) as node:
        _, members = node.members()
    if format == "json":
        as_json({"peers": members})
    else:
        columns = ("name", "address", "state", "reach", "role", "round", "run", "id")
        as_table(columns, [[m[column] for column in columns] for m in members])


def reload(
    address: Address,
    format: Format = "table",
    timeout: Annotated[float, typer.Option(min=0.001, metavar="SECONDS", help="Give up waiting.")] = 300.0,
) -> None:
    """Let a node call its task again for new data; model and round stay the same.

    With TLS it needs the certificate of an operator or the node's own directory.
    """
    with connected(address, timeout) as node:
        samples = node.reload()
    if format == "json":
        as_json({"samples": samples})
    else:
        print(f"{address}: " + ", ".join(f"{n:,} samples for {split}" for split, n in samples.items()))


def ping(
    address: Address,
    count: Annotated[int, typer.Option("--count", "-c", min=1, metavar="N", help="Round trips.")] = 5,
    format: Format = "table",
    timeout: Timeout = 3.0,
) -> None:
    """Measure the round-trip time to a node."""
    with connected(address, timeout) as node:
        node.serving()  # opens the connection
        times = [_milliseconds(node.serving) for _ in range(count)]
    facts = {"min": min(times), "median": median(times), "max": max(times)}
    if format == "json":
        as_json({"address": address, "count": count, "ms": {k: round(v, 3) for k, v in facts.items()}})
    else:
        figures = ", ".join(f"{name} {value:.2f} ms" for name, value in facts.items())
        print(f"{address}: {count} round trips, {figures}")


def _milliseconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1000


def wait(
    address: Address, peers: Peers = None, round: Round = None, state: Reached = None, timeout: Patience = 30.0
) -> None:
    """Wait until a node serves, has peers, or reaches a round or state."""
    with connected(address, WAIT_CALL) as node:
        check = tolerant(lambda: missing(node, peers=peers, round=round, state=state), ending=state in FINAL)
        still = wait_until(check, timeout)
    if still:
        raise PeerGone(address, f"after {timeout:g} s: {still}")


def tolerant(missing: Callable[[], str], *, ending: bool) -> Callable[[], str]:
    """Returns the reason why a node is unreachable instead of raising it. If the caller waits for the node's
    `ending`, a node that has answered before and is gone counts as ended."""
    met = False

    def check() -> str:
        nonlocal met
        try:
            still = missing()
        except PeerGone as e:
            return "" if met and ending and e.text == REFUSED else e.text
        met = True
        return still

    return check


def wait_until(
    missing: Callable[[], str],
    timeout: float,
    *,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> str:
    """Poll until nothing is missing. Returns what is missing at the timeout."""
    end = now() + timeout
    while still := missing():
        if now() >= end:
            return still
        sleep(0.2)
    return ""


def missing(node: Remote, *, peers: int | None, round: int | None, state: str | None) -> str:
    """The conditions that the node does not meet, in words; empty: it meets all. Raises PeerGone."""
    lacks = [] if node.serving() or state in NOT_SERVING else ["not serving yet"]
    if peers is not None:
        me, members = node.members()
        alive = sum(m["role"] == "node" and m["state"] == "alive" and m["id"] != me for m in members)
        lacks += [f"{alive} of {peers} peers"] if alive < peers else []
    if round is not None or state is not None:
        lacks += _behind(node.status(), round, state)
    return ", ".join(lacks)


def _behind(facts: dict[str, Any], round: int | None, state: str | None) -> list[str]:
    lacks = []
    if round is not None and facts.get("round", 0) < round:
        lacks.append(f"in round {facts.get('round', 0)}, not {round}")
    reached = facts.get("state")
    if state is not None and (reached not in STATES or STATES.index(reached) < STATES.index(state)):
        lacks.append(f"{reached}, not {state}")
    return lacks
