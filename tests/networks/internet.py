"""A small internet of network namespaces: public hosts, sites behind NAT, and sites with a proxy only.

All private networks use the same addresses, as they do at real sites.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

COMMANDS = {"ip": "iproute2", "nft": "nftables", "unshare": "util-linux"}
NAMESPACES = Path("/run/netns")
PUBLIC, PRIVATE = "203.0.113", "192.168.50"
NAT = """
table ip nat {
  chain after { type nat hook postrouting priority 100; oifname "wan" masquerade; }
}
table ip filter {
  chain through { type filter hook forward priority 0; policy drop;
    iifname "lan" accept; ct state established,related accept; }
  chain into { type filter hook input priority 0; policy accept;
    iifname "wan" ct state new drop; }
}
"""


def missing(commands: Sequence[str] = ()) -> str | None:
    """In words, what this machine lacks; None: nothing."""
    if sys.platform != "linux":
        return f"network namespaces are Linux's, this is {sys.platform}"
    if os.geteuid() != 0:
        return "root is needed to configure NAT"
    needed = COMMANDS | {name: name for name in commands}
    for name, package in needed.items():
        if not shutil.which(name):
            return f"the command {name} is not there (Debian: {package})"
    return None


@dataclass(frozen=True, slots=True)
class Host:
    """A network namespace."""

    name: str
    address: str

    def command(self, *words: object) -> list[str]:
        return ["ip", "netns", "exec", self.name, *map(str, words)]

    def run(self, *words: object, input: str | None = None) -> str:
        done = subprocess.run(self.command(*words), capture_output=True, text=True, input=input, check=False)
        if done.returncode:
            raise RuntimeError(f"{self.name}: {' '.join(map(str, words))}: {done.stderr.strip()}")
        return done.stdout


class Internet:
    """A bridge that all public addresses are on. To be used in namespaces of its own (`__main__.py`)."""

    def __init__(self) -> None:
        NAMESPACES.mkdir(exist_ok=True)
        _sh("mount", "-t", "tmpfs", "tmpfs", str(NAMESPACES))
        self._used = 0
        self._hosts: list[str] = []
        self._switch = self._namespace("internet", "")
        self._switch.run("ip", "link", "add", "bridge", "type", "bridge")
        self._switch.run("ip", "link", "set", "bridge", "up")

    def __enter__(self) -> Internet:
        return self

    def __exit__(self, *error: object) -> None:
        for name in self._hosts:
            _sh("ip", "netns", "delete", name)
        _sh("umount", str(NAMESPACES))

    def public(self, name: str, *, device: str = "wan") -> Host:
        """A host with a public address."""
        self._used += 1
        host = self._namespace(name, f"{PUBLIC}.{self._used}")
        plug = f"plug{self._used}"
        _sh("ip", "link", "add", device, "netns", name, "type", "veth", "peer", "name", plug, "netns", "internet")
        self._switch.run("ip", "link", "set", plug, "master", "bridge", "up")
        host.run("ip", "address", "add", f"{host.address}/24", "dev", device)
        host.run("ip", "link", "set", device, "up")
        return host

    def behind_nat(self, name: str) -> Host:
        """A host with a private address: it opens connections, nobody else opens one to it."""
        router = self.public(f"{name}-router")
        site = self._behind(router, name)
        router.run("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        router.run("nft", "-f", "-", input=NAT)
        site.run("ip", "route", "add", "default", "via", f"{PRIVATE}.1")
        return site

    def behind_gateway(self, name: str) -> tuple[Host, Host]:
        """A host that reaches only its gateway, which has a public address, too, and forwards no packets."""
        gateway = self.public(f"{name}-gateway")
        return self._behind(gateway, name), gateway

    def _behind(self, router: Host, name: str) -> Host:
        site = self._namespace(name, f"{PRIVATE}.2")
        _sh("ip", "link", "add", "lan", "netns", name, "type", "veth", "peer", "name", "lan", "netns", router.name)
        for host, address in ((site, site.address), (router, f"{PRIVATE}.1")):
            host.run("ip", "address", "add", f"{address}/24", "dev", "lan")
            host.run("ip", "link", "set", "lan", "up")
        return site

    def _namespace(self, name: str, address: str) -> Host:
        _sh("ip", "netns", "add", name)
        self._hosts.append(name)
        host = Host(name, address)
        host.run("ip", "link", "set", "lo", "up")
        return host


def _sh(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
