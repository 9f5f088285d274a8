"""Prepares the directory of a site: its port, the task's files, its settings and its unit for systemd."""

from __future__ import annotations

import errno
import getpass
import json
import shlex
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pfl_node.address import join_address, parse_address
from pfl_node.daemon.advertise import check_addresses
from pfl_node.daemon.network_setup import check_network, proxy_of
from pfl_node.daemon.preflight import check_names, check_page
from pfl_node.enrolment.join_token import JoinToken
from pfl_node.enrolment.site_files import CONFIG, UNIT, config_text, unit_text
from pfl_node.enrolment.site_plan import SitePlan
from pfl_node.errors import ConfigError
from pfl_node.security.tls_files import CERT, exists
from pfl_node.settings import Settings
from pfl_node.settings.load import load_settings
from pfl_node.store.atomic import write_atomic
from pfl_node.wire.connector import Proxy

GPUS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dri/renderD128")


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteSetup:
    token: JoinToken
    directory: Path  # absolute
    listen: str
    advertise: str | None
    sets: Sequence[str]

    @property
    def config(self) -> Path:
        return self.directory / CONFIG

    @property
    def unit(self) -> Path:
        return self.directory / UNIT

    @property
    def command(self) -> Path:
        """The `pfl-node` that runs now, or that of this Python."""
        called, beside = Path(sys.argv[0]).absolute(), Path(sys.executable).with_name("pfl-node")
        return called if called.name == "pfl-node" else beside

    @property
    def start_line(self) -> str:
        return f"pfl-node --config {self.config}"

    @property
    def proxy(self) -> Proxy | None:
        """That of `--set network.proxy=…`, which the node will use as well. Raises ConfigError."""
        return proxy_of(load_settings(sets=self.sets).network)

    def check(self) -> None:
        """Before anything is written. Raises ConfigError."""
        if exists(self.directory / CERT):
            sets = "".join(f" --set {shlex.quote(setting)}" for setting in self.sets)
            hint = f"start it with `{self.start_line}{sets}`" if self.config.exists() else "start that node"
            raise ConfigError(f"{self.directory} has joined already: {hint}, or join with another --data-dir")
        _check_port(self.listen, "--listen ")

    def write(self, plan: SitePlan) -> list[str]:
        """The names of the files. No code of the invitation runs, so that it can be read before the first start.
        Raises ConfigError."""
        changed = [name for name, text in plan.files.items() if _differs(self.directory / name, text)]
        if changed:
            text = f"{self.directory / changed[0]} is another task than that of the token"
            raise ConfigError(f"{text}: move the file away, and repeat the command")
        settings = self._settings(plan)
        if settings.http.listen:
            _check_port(settings.http.listen, "--set http.listen=")
        for name, text in plan.files.items():
            write_atomic(self.directory / name, text.encode())
        if ":" not in settings.policy.name:
            check_names(settings)
        tree = json.loads(settings.model_dump_json(exclude_unset=True, exclude_none=True))
        write_atomic(self.config, config_text(tree).encode())
        write_atomic(self.unit, self._unit(settings).encode())
        return [CONFIG, UNIT, *plan.files]

    def _settings(self, plan: SitePlan) -> Settings:
        site: dict[str, Any] = {"name": self.token.name, "listen": self.listen, "advertise": self.advertise}
        site |= {"peer_seed": list(self.token.seeds), "data_dir": str(self.directory)}
        shared = {**plan.at(self.directory), "run": self.token.run}
        tree = {key: value for key, value in {**site, **shared, "tls": {"on": True}}.items() if value is not None}
        draft = self.config.with_suffix(".draft")
        write_atomic(draft, config_text(tree).encode())
        try:
            settings = load_settings(config=draft, sets=self.sets)
        finally:
            draft.unlink(missing_ok=True)
        check_addresses(settings.listen, settings.advertise, settings.peer_seed)
        check_page(settings)
        check_network(settings)
        return settings

    def _unit(self, settings: Settings) -> str:
        gpu = settings.device != "cpu" and any(Path(device).exists() for device in GPUS)
        return unit_text(
            name=self.token.name,
            run=settings.run,
            user=getpass.getuser(),
            directory=self.directory,
            command=self.command,
            gpu=gpu,
        )


def _differs(path: Path, text: str) -> bool:
    try:
        return path.read_text(encoding="utf-8") != text
    except FileNotFoundError:
        return False
    except (OSError, ValueError):
        return True


def _check_port(listen: str, option: str) -> None:
    """The node will need it, and the operator need not be asked before it is free. Raises ConfigError."""
    host, port = parse_address(listen, what="listen", any_port=True)
    error = _bind(host, port)
    if error is None:
        return
    if error.errno == errno.EADDRINUSE:
        other = next((n for n in range(port + 1, min(port + 100, 65536)) if not _bind(host, n)), 0)
        hint = f"give this site another one, such as {option}{join_address(host, other)}"
        raise ConfigError(f"port {port} is in use on this machine: {hint}")
    text = f"cannot listen on {listen} ({error.strerror or error})"
    raise ConfigError(f"{text}: {option.strip(' =')} takes an address of this machine, or 0.0.0.0:{port}")


def _bind(host: str, port: int) -> OSError | None:
    try:
        with socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET):
            return None
    except OSError as error:
        return error
