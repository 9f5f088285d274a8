"""Hosts on one virtual network: each has an address, a network and a /srv of its own, and runs shell commands.

Runs as root of namespaces of its own: `unshare --net --mount --pid --fork --kill-child=KILL --mount-proc`.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

FLAGS = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc")
DEADLINE = 300.0  # seconds for anything to happen on a busy machine


def possible() -> bool:
    words = [*FLAGS, "sh", "-c", "ip link add br0 type bridge && mount -t tmpfs none /srv"]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


class VirtualHost:
    def __init__(self, name: str, address: str, folder: Path, path: str) -> None:
        self.name = name
        self.folder = folder / name
        self.folder.mkdir()
        self._environment = {"PATH": path, "HOME": str(self.folder), "PFL_DEBUG": ""}
        self._holder = subprocess.Popen(["unshare", "--net", "--mount", "sleep", "infinity"])
        self._outputs = 0
        for _ in range(100):  # until it is in a network of its own
            if os.readlink(f"/proc/{self._holder.pid}/ns/net") != os.readlink("/proc/self/ns/net"):
                break
            time.sleep(0.05)
        _ip("link", "add", f"to-{name}", "type", "veth", "peer", "name", "eth0", "netns", str(self._holder.pid))
        _ip("link", "set", f"to-{name}", "master", "br0", "up")
        for line in (
            "ip link set lo up",
            f"ip addr add {address}/24 dev eth0",
            "ip link set eth0 up",
            "mount -t tmpfs none /srv",
            "mkdir /srv/scans",
        ):
            self.run(line)

    def hide(self, gateway: VirtualHost) -> None:
        """Move behind the gateway, which translates addresses: nobody can dial this host any more."""
        self.run("ip link del eth0")
        inside = f"ip link add lan type veth peer name eth0 netns {self._holder.pid}"
        for line in (
            inside,
            "ip addr add 10.9.0.1/24 dev lan",
            "ip link set lan up",
            "sysctl -qw net.ipv4.ip_forward=1",
            "nft add table ip nat",
            "nft 'add chain ip nat post { type nat hook postrouting priority 100; }'",
            "nft add rule ip nat post oifname eth0 masquerade",
        ):
            gateway.run(line)
        self.run("ip addr add 10.9.0.2/24 dev eth0 && ip link set eth0 up && ip route add default via 10.9.0.1")

    def start(self, line: str) -> tuple[subprocess.Popen[bytes], Path]:
        """The process, and the file of its output."""
        self._outputs += 1
        out = self.folder / f".out-{self._outputs}"
        words = ["nsenter", "-t", str(self._holder.pid), "-n", "-m", "-w", "--", "sh", "-c"]
        words += [f"cd {self.folder} && {line}"]
        with out.open("wb") as file:
            started = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, env=self._environment
            )
        return started, out

    def run(self, line: str) -> str:
        """The output; fails if the command does."""
        process, out = self.start(line)
        code = process.wait(DEADLINE)
        assert code == 0, f"{self.name}: {line}: exit code {code}\n{out.read_text()}"
        return out.read_text()


def network(addresses: Mapping[str, str], folder: Path, path: str) -> dict[str, VirtualHost]:
    _ip("link", "add", "br0", "type", "bridge", "forward_delay", "0")
    _ip("link", "set", "br0", "up")
    return {name: VirtualHost(name, address, folder, path) for name, address in addresses.items()}


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)
