"""TLS for a node as configured: whether to use it, with which files, and the node's id derived from its key."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pfl_node.errors import ConfigError
from pfl_node.security.requirements import check_files, reason_for_tls
from pfl_node.security.tls_files import CERT, TlsFiles
from pfl_node.store.data_dir import DEFAULT_ROOT, DataDir

if TYPE_CHECKING:
    from pfl_node.settings import Settings
    from pfl_node.wire.tls import Tls


def why_tls(settings: Settings) -> str | None:
    """The reason in words; None: unencrypted."""
    addresses = [("listen", settings.listen), ("advertise", settings.advertise)]
    addresses += [("peer_seed", seed) for seed in settings.peer_seed]
    addresses += [("network.relays", relay) for relay in settings.network.relays]
    return reason_for_tls(settings.tls.on, settings.insecure, addresses)


def check_tls(settings: Settings) -> None:
    """Before anything is opened: do the required files exist?"""
    if (why := why_tls(settings)) and not _later(settings):
        try:
            files = tls_files(settings, settings.data_dir)
        except ConfigError as error:
            raise type(error)(f"{why}: {error}") from error
        check_files(files, why)


def check_pair_keys(settings: Settings) -> None:
    """Records are signed with TLS only."""
    if settings.privacy.dp_correlated and not why_tls(settings):
        raise ConfigError(
            "privacy.dp_correlated needs TLS, because anybody could put their own key into a neighbour's record: "
            "set tls.on = true (docs/security.md)"
        )


def _later(settings: Settings) -> bool:
    """A node that takes the first free directory finds its files only after it has one."""
    return settings.data_dir is None and any(DEFAULT_ROOT.glob("node-*/" + CERT))


def tls_files(settings: Settings, directory: Path | None) -> TlsFiles:
    tls = settings.tls
    return TlsFiles.find(directory, ca=tls.ca, cert=tls.cert, key=tls.key, allow=tls.allow, revoked=tls.revoked)


def tls_of(settings: Settings, home: DataDir) -> Tls | None:
    """None: unencrypted. Otherwise the node adopts the id of its key."""
    why = why_tls(settings)
    if not why:
        return None
    from pfl_node.wire.tls import Tls

    files = tls_files(settings, home.path)
    check_files(files, why)
    tls = Tls(files, reload=settings.tls.reload, name=settings.name or "")
    tls.trust.warn_of_exposed_key()
    home.adopt(tls.id)
    return tls
