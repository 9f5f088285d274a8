"""A swarm with TLS, real processes and real nodes: right certificates in, each wrong one out with its reason."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pfl_node.cli import main
from pfl_node.security.tls_files import ALLOW, CERT, KEY, REVOKED
from tests.e2e.in_process import DEADLINE, Life, Town, play
from tests.e2e.processes import Process, processes
from tests.e2e.web import get, live
from tests.identities import LONG_AGO, Site, fresh_id, pinned


class Seed:
    """A bootstrap with TLS, and a command line beside it."""

    def __init__(self, site: Site, process: Process, capsys: pytest.CaptureFixture[str]) -> None:
        self.site = site
        self.process = process
        self.address = process.says("listens on").rpartition(" ")[2]
        self._capsys = capsys

    def asked(self, *words: object) -> tuple[int, str]:
        """Exit code, and all that was printed."""
        self._capsys.readouterr()
        code = main(["peers", self.address, "--timeout", "10", *map(str, words)])
        said = self._capsys.readouterr()
        return code, said.out + said.err

    def logs(self, *words: str) -> None:
        line = self.process.says(words[0])
        assert [w for w in words if w not in line] == [], line


@pytest.fixture
def seed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Seed]:
    site = Site(tmp_path, "our CA")
    site.member("seed")
    with processes(tmp_path) as start:
        command = ("--tls", "--data-dir", tmp_path / "seed", "--listen", "127.0.0.1:0", "--log-format", "console")
        yield Seed(site, start("bootstrap", *command), capsys)


def test_who_has_a_certificate_of_the_ca_is_answered(seed: Seed, tmp_path: Path) -> None:
    for name, operator in (("ann", False), ("olga", True)):
        seed.site.member(name, operator=operator)
        code, said = seed.asked("--data-dir", tmp_path / name)
        assert (code, "bootstrap-" in said) == (0, True)
    ann = tmp_path / "ann"
    files = ("--ca", ann / "ca.pem", "--cert", ann / CERT, "--key", ann / KEY)
    assert seed.asked(*files)[0] == 0


def test_who_speaks_no_tls_is_told_to_and_the_seed_logs_it(seed: Seed, tmp_path: Path) -> None:
    code, said = seed.asked()
    assert (code, said.count("\n")) == (1, 1)
    assert "the node uses TLS: present a certificate with --data-dir DIR" in said
    assert (
        f"the node uses TLS, and {tmp_path}/typo has no key.pem" in seed.asked("--data-dir", tmp_path / "typo")[1]
    )
    seed.logs("refused a connection from", "it does not speak TLS")


def test_who_shows_no_certificate_is_logged(seed: Seed) -> None:
    host, _, port = seed.address.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with socket.create_connection((host, int(port)), timeout=20) as plain, context.wrap_socket(plain) as line:
        assert _rest(line) == b""
    seed.logs("refused a connection from", "it showed no certificate")


def test_a_certificate_of_another_ca_is_refused_by_both_sides(seed: Seed, tmp_path: Path) -> None:
    Site(tmp_path / "theirs", "their CA").member("ann")
    code, said = seed.asked("--data-dir", tmp_path / "theirs" / "ann")
    assert code == 1
    assert "it presented a certificate of another CA ('our CA')" in said
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    theirs.check_hostname = False
    theirs.verify_mode = ssl.CERT_NONE
    theirs.load_cert_chain(tmp_path / "theirs" / "ann" / CERT, tmp_path / "theirs" / "ann" / KEY)
    host, _, port = seed.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as plain, theirs.wrap_socket(plain) as line:
        assert _rest(line) == b""
    seed.logs("its certificate is of another CA", "refused a connection from")


def test_an_expired_certificate_is_refused_before_it_is_shown(seed: Seed, tmp_path: Path) -> None:
    seed.site.member("ann")
    seed.site.certify("ann", start=LONG_AGO)
    code, said = seed.asked("--data-dir", tmp_path / "ann")
    assert code == 2
    assert "expired on" in said


def test_revoking_and_allowing_need_no_restart(seed: Seed, tmp_path: Path) -> None:
    ann, carl = (seed.site.member(name).directory for name in ("ann", "carl"))
    assert seed.asked("--data-dir", ann)[0] == 0
    assert main(["ca", "revoke", "ann", "--ca-dir", str(seed.site.ca.path)]) == 0
    (tmp_path / "seed" / REVOKED).write_bytes((seed.site.ca.path / REVOKED).read_bytes())
    seed.logs("list of revoked ids: 1 ids")
    code, said = seed.asked("--data-dir", ann)
    assert (code, f"{fresh_id(ann)} is revoked" in said) == (1, True)
    seed.logs("refused a connection from", "is revoked")
    (tmp_path / "seed" / ALLOW).write_text(f"{fresh_id(ann)}\n")
    seed.logs("allow-list: 1 ids")
    assert "is not on the allow-list" in seed.asked("--data-dir", carl)[1]


def test_a_plain_node_is_asked_plainly_on_loopback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Site(tmp_path).member("ann")
    with processes(tmp_path) as start:
        process = start("bootstrap", "--listen", "127.0.0.1:0")
        address = process.address
        assert main(["peers", address, "--data-dir", str(tmp_path / "ann")]) == 0
        ann = tmp_path / "ann"
        files = ["--ca", str(ann / "ca.pem"), "--cert", str(ann / CERT), "--key", str(ann / KEY)]
        assert main(["peers", address, *files]) == 1
    assert "it does not speak TLS, this side does" in capsys.readouterr().err


# -- nodes that learn ------------------------------------------------------------------------------------------

TLS = {"on": True, "reload": 0.05}
EL = {"policy": {"name": "el"}, "rounds": None, "start": {"peers": 1, "wait": 60}, "tls": TLS}


LATE = "stale_round"  # on a busy machine a model may come after its round, with or without TLS


def _failed(life: Life) -> dict[tuple[str, str], int]:
    """Calls that failed, but for those to somebody who is in another round or has not begun."""
    assert life.node.recorder
    return {key: n for key, n in life.node.recorder.failures.items() if key[1] not in (LATE, "not_ready")}


async def _pair(town: Town, *names: str) -> list[Life]:
    first = await town.runs(names[0], **EL)
    return [first, *[await town.runs(name, **EL, peer_seed=(first.address,)) for name in names[1:]]]


def test_new_certificates_under_load_drop_no_round(tmp_path: Path) -> None:
    site = Site(tmp_path)

    async def scene(town: Town) -> None:
        names = ("ann", "bob", "carl")
        for name in names:
            site.member(name)
        lives = await _pair(town, *names)
        for life in lives:
            await life.trains()
        await asyncio.gather(*(life.rounds(2) for life in lives))
        before = [_failed(life) for life in lives]
        for name, life in zip(names, lives, strict=True):
            tls = life.node.tls
            assert tls
            site.member(name)
            await life.until(lambda trust=tls.trust: trust.generation > 0)  # type: ignore[misc]
            await asyncio.gather(*(one.rounds(2) for one in lives))
        assert [_failed(life) for life in lives] == before
        for life in lives:
            assert life.node.id == fresh_id(town.path / life.node.name)
            assert life.node.host.refused.keys() <= {LATE, "not_ready"}
            rounds = [row["round"] for row in life.rows("round")]
            assert rounds == list(range(rounds[0], rounds[0] + len(rounds)))

    play(tmp_path, scene)


def test_a_revoked_node_is_out_and_the_others_go_on(tmp_path: Path) -> None:
    site = Site(tmp_path)

    async def scene(town: Town) -> None:
        names = ("ann", "bob", "carl")
        for name in names:
            site.member(name)
        ann, bob, carl = await _pair(town, *names)
        for life in (ann, bob, carl):
            await life.trains()
        await ann.until(lambda: len(ann.node.peers()) == 2)
        for name in ("ann", "bob"):
            site.revoke(carl.node.id, at=name)
        await ann.until(lambda: carl.node.id not in ann.node.peers())
        await bob.until(lambda: carl.node.id not in bob.node.peers())
        assert ann.node.host.refused.get("revoked", 0) > 0
        await asyncio.gather(ann.rounds(2), bob.rounds(2))
        assert bob.node.id in ann.node.peers()

    play(tmp_path, scene)


def test_the_page_of_one_node_shows_the_others_of_a_swarm_with_tls(tmp_path: Path) -> None:
    site = Site(tmp_path)

    async def scene(town: Town) -> None:
        for name in ("ann", "bob", "carl"):
            site.member(name)
        ann = await town.runs("ann", **EL, http={"listen": "127.0.0.1:0", "every": 0.2})
        others = [await town.runs(name, **EL, peer_seed=(ann.address,)) for name in ("bob", "carl")]
        await asyncio.gather(*(life.trains() for life in (ann, *others)))
        await ann.until(lambda: len(ann.node.peers()) == 2)
        await asyncio.gather(*(life.rounds(3) for life in (ann, *others)))

        async with asyncio.timeout(DEADLINE):
            async for event, told in live(ann):
                nodes = {n["name"]: n for n in told.get("nodes", ())} if event == "swarm" else {}
                if len(nodes) == 3 and all(nodes[name].get("doing") == "training" for name in ("bob", "carl")):
                    break
        assert [n["error"] for n in nodes.values()] == [None] * 3
        history = (await get(ann, "/api/history")).json["nodes"]
        assert all(len(history[life.node.id]) >= 2 for life in others)
        figure = r"^pfl_node_certificate_expiry_timestamp_seconds (.*)$"
        (expiry,) = re.findall(figure, (await get(ann, "/metrics")).text, re.M)
        assert 0 < float(expiry) - time.time() < 2 * 86400

    play(tmp_path, scene)


def test_nodes_with_pinned_ids_learn_together_without_a_ca(tmp_path: Path) -> None:
    ids = [fresh_id(tmp_path / name) for name in ("ann", "bob")]
    for name in ("ann", "bob"):
        pinned(tmp_path / name, allow=ids)

    async def scene(town: Town) -> None:
        ann, bob = await _pair(town, "ann", "bob")
        for life in (ann, bob):
            await life.trains()
        await asyncio.gather(ann.rounds(2), bob.rounds(2))
        assert [ann.node.id, bob.node.id] == ids
        assert ann.node.host.received[bob.node.id] > 0

    play(tmp_path, scene)


def _rest(line: ssl.SSLSocket) -> bytes:
    """Nothing, when the other side hung up."""
    try:
        return line.recv(1)
    except OSError:
        return b""
