"""The files that `pfl-node join` writes at a site: settings, and a unit for systemd."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pfl_node.settings.toml import toml, toml_key

CONFIG, UNIT = "pfl-node.toml", "pfl-node.service"
HOMES = (Path("/home"), Path("/root"), Path("/run/user"))

SERVICE = """\
[Unit]
Description=pfl-node {name} of the run {run}
Wants=network-online.target
After=network-online.target time-sync.target
StartLimitIntervalSec=600
StartLimitBurst=5

[Service]
User={user}
UMask=0077
WorkingDirectory={directory}
Environment=OMP_NUM_THREADS=1
ExecStart={command} --config {config}
ExecReload=/bin/kill -HUP $MAINPID
Restart=on-failure
RestartSec=10
RestartPreventExitStatus=2
TimeoutStopSec=90
LimitNOFILE=8192

CapabilityBoundingSet=
LockPersonality=true
NoNewPrivileges=true
{devices}PrivateTmp=true
ProtectClock=true
ProtectControlGroups=true
ProtectHome={home}
ProtectHostname=true
ProtectKernelLogs=true
ProtectKernelModules=true
ProtectKernelTunables=true
ProtectSystem=strict
ReadWritePaths={writable}
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK
RestrictNamespaces=true
RestrictRealtime=true
RestrictSUIDSGID=true
SystemCallArchitectures=native
SystemCallErrorNumber=EPERM
SystemCallFilter=@system-service

[Install]
WantedBy=multi-user.target
"""


def config_text(settings: Mapping[str, Any]) -> str:
    """Settings as TOML, top-level keys first."""
    lines = ["# Written by `pfl-node join`. What is not specific to this site must be the same at all sites."]
    lines += [f"{toml_key(key)} = {toml(value)}" for key, value in settings.items() if not _section(value)]
    for key, value in settings.items():
        if _section(value):
            lines += ["", f"[{toml_key(key)}]", *(f"{toml_key(k)} = {toml(v)}" for k, v in value.items())]
    return "\n".join(lines) + "\n"


def unit_text(
    *, name: str, run: str, user: str, directory: Path, command: Path, gpu: bool, uses: tuple[Path, ...] = ()
) -> str:
    """`uses` are further paths that the node reads. With a GPU the node needs its devices."""
    in_a_home = any(path.is_relative_to(home) for path in (directory, command, *uses) for home in HOMES)
    return SERVICE.format(
        name=_literal(name),
        run=_literal(run),
        user=_literal(user),
        directory=_literal(str(directory)),
        writable=_word(str(directory)),
        command=_word(str(command)),
        config=_word(str(directory / CONFIG)),
        devices="" if gpu else "PrivateDevices=true\n",
        home="read-only" if in_a_home else "true",
    )


def _section(value: Any) -> bool:
    return isinstance(value, Mapping)


def _literal(text: str) -> str:
    """systemd expands %."""
    return text.replace("%", "%%")


def _word(text: str) -> str:
    """Where systemd splits a line into words and expands variables."""
    quoted = _literal(text).replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
    return f'"{quoted}"' if " " in text else quoted
