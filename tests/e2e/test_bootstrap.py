"""pfl-bootstrap as a user runs it: a process, its lines, its exit codes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Literal

import grpc
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pfl_node.membership import membership_pb2
from pfl_node.membership.member import Member, State
from pfl_node.membership.service import Membership
from pfl_node.membership.swim_config import SwimConfig
from pfl_node.wire import membership_pb2_grpc, peer_pb2, peer_pb2_grpc
from pfl_node.wire.endpoint import Endpoint
from pfl_node.wire.membership_service import attach_membership
from tests.e2e.processes import processes

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """To its end."""
    command = [sys.executable, "-m", "bootstrap", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=ENVIRONMENT, check=False)


class Running:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self.process = process
        self.told = json.loads(process.stdout.readline())
        self.address = self.told["address"]

    def stop(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """Exit code and what it logged."""
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=20)
        return self.process.returncode, errors


@contextmanager
def bootstrap(*arguments: str) -> Iterator[Running]:
    command = [sys.executable, "-m", "bootstrap", *(arguments or ("--listen", "127.0.0.1:0"))]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    try:
        yield Running(process)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_tells_how_to_join_and_a_signal_ends_it_in_order(number: signal.Signals) -> None:
    with bootstrap() as seed:
        assert (seed.told["event"], seed.told["join"]) == ("listening", f"pfl-node --peer-seed {seed.address}")
        code, errors = seed.stop(number)
        assert code == 0
        assert "Traceback" not in errors


def test_to_people_it_tells_it_in_words(tmp_path: Path) -> None:
    with processes(tmp_path) as start:
        seed = start("bootstrap", "--listen", "127.0.0.1:0", "--log-format", "console")
        address = seed.says(" listens on ").rpartition(" ")[2]
        assert seed.says("joins with") == f"a node joins with: pfl-node --peer-seed {address}"


def test_for_programs_even_its_last_words_are_json() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        result = run("--listen", f"127.0.0.1:{port}")
    told = json.loads(result.stderr)
    assert (result.returncode, told["level"]) == (1, "error")
    assert f"port {port} is in use" in told["event"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ("--listen", "0.0.0.0:7000"),
            "listen '0.0.0.0:7000' is not loopback, so connections need TLS: give --data-dir DIR",
        ),
        (("--advertise", "10.0.0.1:7000"), "'10.0.0.1:7000' is not loopback"),
        (("--listen", "0.0.0.0:7000", "--insecure"), "set --advertise HOST:PORT"),
        (("--listen", "nonsense"), "listen 'nonsense' must be HOST:PORT"),
        (("--listen", "127.0.0.1:99999"), "the port must be a number from 0 to 65535"),
        (("--peer-seed", "nonsense"), "peer_seed 'nonsense' must be HOST:PORT"),
        (("--lisen", "127.0.0.1:0"), "unknown argument '--lisen'; did you mean '--listen'?"),
        (("--log-format", "xml"), "invalid choice: 'xml'"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(arguments: tuple[str, ...], says: str) -> None:
    result = run(*arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    assert says in result.stderr
    assert result.stderr.count("\n") == 1


def test_an_address_that_is_not_there_yet_is_one_line_and_exit_code_1() -> None:
    result = run("--listen", "203.0.113.9:7000", "--insecure")
    assert result.returncode == 1
    assert "cannot listen on 203.0.113.9:7000" in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_port_in_use_is_one_line_and_exit_code_1() -> None:
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        with socket.socket(socket.AF_INET, kind) as other:
            other.bind(("127.0.0.1", 0))
            if kind == socket.SOCK_STREAM:
                other.listen()
            port = other.getsockname()[1]
            result = run("--listen", f"127.0.0.1:{port}")
        assert result.returncode == 1
        assert f"cannot listen on 127.0.0.1:{port}: port {port} is in use" in result.stderr
        assert result.stderr.count("\n") == 1


def test_it_answers_health_status_and_list() -> None:
    with bootstrap() as seed, grpc.insecure_channel(seed.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        grpc.channel_ready_future(channel).result(timeout=10)
        answer = health.Check(health_pb2.HealthCheckRequest(service="pfl.v2.Membership"), timeout=10)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        status = peer_pb2_grpc.PeerStub(channel).GetStatus(peer_pb2.StatusRequest(), timeout=10)
        assert (status.role, status.state, status.address) == ("bootstrap", "serving", seed.address)
        assert json.loads(status.json)["peers"] == 0
        listed = membership_pb2_grpc.MembershipStub(channel).List(membership_pb2.ListRequest(), timeout=10)
        assert [(m.id, m.role) for m in listed.members] == [(status.id, "bootstrap")]
        with pytest.raises(grpc.RpcError) as caught:
            peer_pb2_grpc.PeerStub(channel).SendModel(iter(()), timeout=10)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("transport", ["udp", "grpc"])
def test_nodes_join_through_it_and_hear_its_goodbye(transport: Literal["udp", "grpc"]) -> None:
    async def scenario(seed: Running) -> str:
        changed = asyncio.Event()
        places: list[tuple[Endpoint, Membership]] = []
        for number in range(3):
            endpoint = Endpoint()
            membership = attach_membership(
                endpoint,
                Member(f"id-{number}", f"node-{number}", incarnation=1),
                SwimConfig(transport=transport),
                rng=Random(number),
                on_event=lambda event: changed.set(),
            )
            await endpoint.bind("127.0.0.1:0", membership.bind)
            await endpoint.start()
            await membership.start([seed.address], advertise=endpoint.address)
            places.append((endpoint, membership))

        async def until_all(role: str, state: State, count: int) -> None:
            def seen(membership: Membership) -> int:
                return sum(m.role == role and m.state is state for m in membership.members())

            async with asyncio.timeout(30):
                while not all(seen(membership) == count for _, membership in places):
                    changed.clear()
                    await changed.wait()

        await until_all("node", State.ALIVE, 3)
        code, errors = await asyncio.to_thread(seed.stop)
        assert code == 0
        await until_all("bootstrap", State.LEFT, 1)
        for endpoint, membership in places:
            await membership.close()
            await endpoint.stop(0)
        return errors

    with bootstrap("--listen", "127.0.0.1:0", "--membership", transport, "--log-format", "json") as seed:
        logged = [json.loads(line) for line in asyncio.run(scenario(seed)).splitlines()]
    joined = [line for line in logged if line["event"] == "joined"]
    assert sorted(line["peer"] for line in joined) == ["id-0", "id-1", "id-2"]


def test_with_a_data_directory_it_keeps_its_id(tmp_path: Path) -> None:
    ids = []
    for _ in range(2):
        with bootstrap("--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "seed")) as seed:
            ids.append(seed.told["id"])
            assert seed.stop()[0] == 0
    assert ids[0] == ids[1]


def test_a_second_one_joins_the_first() -> None:
    with (
        bootstrap("--listen", "127.0.0.1:0", "--name", "one") as first,
        bootstrap("--listen", "127.0.0.1:0", "--name", "two", "--peer-seed", first.address) as second,
        grpc.insecure_channel(second.address) as channel,
    ):
        listed = membership_pb2_grpc.MembershipStub(channel).List(membership_pb2.ListRequest(), timeout=10)
        assert {m.name for m in listed.members} == {"one", "two"}


def test_it_is_light() -> None:
    with bootstrap() as seed:
        process = psutil.Process(seed.process.pid)
        assert process.memory_info().rss < 60e6
        mapped = {Path(region.path).name for region in process.memory_maps()}
        assert not [name for name in mapped if "torch" in name or "numpy" in name or "multiarray" in name]


def test_it_imports_nothing_heavy() -> None:
    code = (
        "import sys, bootstrap.__main__; "
        "print(*sys.modules.keys() & {'numpy', 'torch', 'pydantic', 'structlog', 'typer', 'rich'})"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=ENVIRONMENT
    )
    assert result.stdout.strip() == ""


def test_version_and_help_are_answered() -> None:
    assert run("--version").stdout.startswith("pfl-bootstrap ")
    help_text = run("--help").stdout
    for flag in ("--listen", "--advertise", "--insecure", "--log-format", "--data-dir"):
        assert flag in help_text
