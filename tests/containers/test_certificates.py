"""A swarm of containers with TLS: its places get certificates, a node finds its own, a health check is let in."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from pfl_node.daemon.tls_setup import check_tls, tls_of
from pfl_node.errors import ConfigError
from pfl_node.security.tls_files import TlsFiles
from pfl_node.settings import Settings
from pfl_node.store.data_dir import DataDir
from pfl_node.wire.endpoint import Endpoint
from pfl_node.wire.tls import Tls
from tests.containers.files import DOCKER


@pytest.fixture
def certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script of the image, with its paths here."""
    spec = importlib.util.spec_from_file_location("certificates", DOCKER / "certificates.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in ("CA", "SEED", "DATA"):
        monkeypatch.setattr(module, name, tmp_path / name)
    monkeypatch.setenv("PFL_NODES", "2")
    return module


def test_every_place_gets_a_certificate_once(certificates: ModuleType, tmp_path: Path) -> None:
    assert certificates.main([]) == 0
    places = [
        tmp_path / "SEED",
        *(tmp_path / "DATA" / p for p in ("operator", "pfl-data/node-1", "pfl-data/node-2")),
    ]
    first = [(place / "cert.pem").read_bytes() for place in places]
    assert certificates.main([]) == 0
    assert [(place / "cert.pem").read_bytes() for place in places] == first


def test_who_is_revoked_is_so_at_every_place(certificates: ModuleType, tmp_path: Path) -> None:
    certificates.main([])
    assert certificates.main(["revoke", "node-2"]) == 0
    lists = [path.read_text() for path in (tmp_path / "DATA").rglob("revoked")]
    assert len(lists) == 3
    assert all("node-2" in text for text in (*lists, (tmp_path / "SEED" / "revoked").read_text()))


def test_a_node_that_takes_the_first_free_directory_finds_its_certificate_there(
    certificates: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(listen="0.0.0.0:7946", peer_seed=("seed:7000",))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="give --data-dir DIR"):
        check_tls(settings)
    certificates.main([])
    monkeypatch.chdir(tmp_path / "DATA")
    check_tls(settings)
    homes = [DataDir.open(None) for _ in range(3)]
    try:
        tls = tls_of(settings, homes[0])
        assert tls
        assert tls.id == homes[0].identity.id
        with pytest.raises(ConfigError, match="node-3 has neither"):
            tls_of(settings, homes[2])
    finally:
        for home in homes:
            home.close()


def test_the_health_check_is_let_in_with_a_certificate_that_may_only_look(
    certificates: ModuleType, tmp_path: Path
) -> None:
    certificates.main([])

    async def scene() -> list[int]:
        endpoint = Endpoint(tls=Tls(TlsFiles.find(tmp_path / "SEED")))
        await endpoint.bind("127.0.0.1:0")
        await endpoint.start()
        await endpoint.serving(True)
        words = [sys.executable, "-I", "-S", str(DOCKER / "healthy.py"), endpoint.address]
        pair = ["--tls", *(str(tmp_path / "DATA" / "operator" / f"{part}.pem") for part in ("cert", "key"))]
        codes = []
        for more in (pair, []):
            process = await asyncio.create_subprocess_exec(*words, *more, stdout=asyncio.subprocess.DEVNULL)
            codes.append(await process.wait())
        await endpoint.stop(0)
        return codes

    assert asyncio.run(scene()) == [0, 1]
