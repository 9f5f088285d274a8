"""The reading verbs against a real gRPC server with made-up answers."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from pfl_node.cli.inspect import tolerant, wait_until
from pfl_node.cli.remote import REFUSED, why
from pfl_node.errors import PeerGone
from pfl_node.membership import membership_pb2
from pfl_node.wire import membership_pb2_grpc, peer_pb2, peer_pb2_grpc
from tests.unit.cli.run_command import Shell

Member = membership_pb2.Member
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


class Company(membership_pb2_grpc.MembershipServicer):
    def List(self, request: Any, context: Any) -> Any:  # noqa: N802
        members = [
            Member(id="b", name="bob", address="127.0.0.1:2", role="node", run="r", round=4, state=Member.SUSPECT),
            Member(id="a", name="ann", address="127.0.0.1:1", role="node", run="r", round=3),
            Member(id="c", name="cid", address="127.0.0.1:3", role="node", run="r", state=Member.DEAD),
            Member(id="s", name="seed", address="127.0.0.1:9", role="bootstrap", state=Member.LEFT),
            Member(id="d", name="dan", address="127.0.0.1:4", role="node", run="r", round=3),
        ]
        return membership_pb2.ListReply(self="a", members=members)


class Ann(peer_pb2_grpc.PeerServicer):
    def GetStatus(self, request: Any, context: Any) -> Any:  # noqa: N802
        more = {"peers": 2, "id": "not this one", "measured": {"test": 0.5}}
        return peer_pb2.Status(
            id="a", name="ann", state="training", round=3, policy="pens", uptime=12.5, json=json.dumps(more)
        )


class Running:
    """A server with the services of a node, or of a bootstrap."""

    def __init__(self, *, peer: bool = True) -> None:
        self.health = health.HealthServicer()
        self.health.set("", SERVING)
        self.server = grpc.server(ThreadPoolExecutor(2))
        membership_pb2_grpc.add_MembershipServicer_to_server(Company(), self.server)
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self.server)
        if peer:
            peer_pb2_grpc.add_PeerServicer_to_server(Ann(), self.server)
        self.address = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        self.server.start()

    def stop(self) -> None:
        self.server.stop(None).wait()


@pytest.fixture
def node() -> Iterator[Running]:
    running = Running()
    yield running
    running.stop()


@pytest.fixture
def bootstrap() -> Iterator[Running]:
    running = Running(peer=False)
    yield running
    running.stop()


# -- peers -----------------------------------------------------------------------------------------------------


def test_peers_as_json_have_the_keys_that_scripts_rely_on(shell: Shell, node: Running) -> None:
    peers = json.loads(shell("peers", node.address, "--format", "json").out)["peers"]
    states = {"a": "alive", "b": "suspect", "c": "dead", "d": "alive", "s": "left"}
    assert {p["id"]: p["state"] for p in peers} == states
    ann = next(p for p in peers if p["id"] == "a")
    assert (ann["address"], ann["role"], ann["round"], ann["name"]) == ("127.0.0.1:1", "node", 3, "ann")


def test_peers_as_a_table_have_a_line_each(shell: Shell, node: Running) -> None:
    head, *lines = shell("peers", node.address).out.splitlines()
    assert head.split() == ["name", "address", "state", "reach", "role", "round", "run", "id"]
    assert [line.split()[0] for line in lines] == ["seed", "ann", "bob", "cid", "dan"]


# -- status ----------------------------------------------------------------------------------------------------


def test_status_shows_the_fields_and_the_rest_beside_them(shell: Shell, node: Running) -> None:
    status = json.loads(shell("status", node.address, "--format", "json").out)
    assert (status["id"], status["state"], status["round"], status["rounds"]) == ("a", "training", 3, None)
    assert (status["peers"], status["measured"]) == (2, {"test": 0.5})


def test_status_as_a_table_is_a_line_for_each_fact(shell: Shell, node: Running) -> None:
    lines = dict(line.split(maxsplit=1) for line in shell("status", node.address).out.splitlines())
    assert (lines["policy"], lines["uptime"], lines["rounds"]) == ("pens", "12.5", "-")


def test_a_bootstrap_tells_what_its_members_see(shell: Shell, bootstrap: Running) -> None:
    status = json.loads(shell("status", bootstrap.address, "--format", "json").out)
    assert (status["id"], status["state"]) == ("a", "alive")


# -- ping ------------------------------------------------------------------------------------------------------


def test_ping_measures_round_trips(shell: Shell, node: Running) -> None:
    answer = json.loads(shell("ping", node.address, "-c", "3", "--format", "json").out)
    assert answer["count"] == 3
    assert 0 < answer["ms"]["min"] <= answer["ms"]["median"] <= answer["ms"]["max"]
    assert shell("ping", node.address).out.startswith(f"{node.address}: 5 round trips, min ")


@pytest.mark.parametrize("verb", ["status", "peers", "ping"])
def test_nobody_there_is_one_line_and_exit_code_1(shell: Shell, verb: str) -> None:
    assert shell.failure(verb, "127.0.0.1:1") == "127.0.0.1:1: nothing listens there (connection refused)"


def test_somebody_who_says_nothing_is_given_up_on(shell: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        assert shell.failure("peers", address, "--timeout", "0.2") == f"{address}: no answer within 0.2 s"


@pytest.mark.parametrize(
    ("code", "details", "words"),
    [
        ("UNAVAILABLE", "DNS resolution failed for nowhere:1: x", "no such host"),
        ("UNAVAILABLE", "connect: No route to host (113)", "there is no route to that host"),
        ("UNIMPLEMENTED", "Method not found!", "the server there is not a pfl-node"),
        ("RESOURCE_EXHAUSTED", "a: b: too much", "no answer (resource exhausted: too much)"),
        ("DEADLINE_EXCEEDED", "Deadline Exceeded", "no answer within 3 s"),
    ],
)
def test_a_failed_call_is_told_in_a_few_words(code: str, details: str, words: str) -> None:
    assert why(code, details, 3.0) == words


# -- wait ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", ["", "--peers 1", "--round 3", "--state joining", "--state training --round 1"])
def test_wait_ends_when_everything_is_there(shell: Shell, node: Running, words: str) -> None:
    assert shell("wait", node.address, *words.split()) == (0, "", "")


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        ("--peers 2", "1 of 2 peers"),
        ("--round 5", "in round 3, not 5"),
        ("--state done", "training, not done"),
        ("--peers 9 --round 5", "1 of 9 peers, in round 3, not 5"),
    ],
)
def test_wait_says_what_was_missing(shell: Shell, node: Running, words: str, missing: str) -> None:
    assert shell.failure("wait", node.address, *words.split(), "--timeout", "0") == (
        f"{node.address}: after 0 s: {missing}"
    )


def test_wait_wants_a_node_that_serves(shell: Shell, node: Running) -> None:
    node.health.set("", NOT_SERVING)
    assert shell.failure("wait", node.address, "--timeout", "0").endswith("after 0 s: not serving yet")


def test_wait_for_nobody_says_so(shell: Shell) -> None:
    assert shell.failure("wait", "127.0.0.1:1", "--timeout", "0") == (
        "127.0.0.1:1: after 0 s: nothing listens there (connection refused)"
    )


@pytest.mark.parametrize(
    ("answers", "ending", "still"),
    [
        ([REFUSED], True, REFUSED),
        (["training, not done", REFUSED], True, ""),
        (["training, not done", "no answer within 2 s"], True, "no answer within 2 s"),
        (["in round 1, not 2", REFUSED], False, REFUSED),
    ],
)
def test_a_node_that_is_gone_has_ended_if_it_was_there_before(
    answers: list[str], ending: bool, still: str
) -> None:
    told = iter(answers)

    def missing() -> str:
        if (text := next(told)).startswith("no"):
            raise PeerGone("a:1", text)
        return text

    ask = tolerant(missing, ending=ending)
    assert [ask() for _ in answers][-1] == still


def test_waiting_asks_again_until_nothing_is_missing() -> None:
    answers = iter(["two peers", "one peer", ""])
    slept: list[float] = []
    assert wait_until(lambda: next(answers), 10.0, now=lambda: sum(slept), sleep=slept.append) == ""
    assert len(slept) == 2


def test_waiting_gives_up_at_the_deadline_with_the_last_answer() -> None:
    slept: list[float] = []
    still = wait_until(lambda: f"missing {len(slept)}", 1.0, now=lambda: sum(slept), sleep=slept.append)
    assert still == f"missing {len(slept)}"
    assert 1.0 <= sum(slept) < 1.3
