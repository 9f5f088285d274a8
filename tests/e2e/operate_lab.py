"""Follows the chapter "From nothing to three sites" of docs/operate.md on four hosts, command by command.

    python -m tests.e2e.operate_lab FOLDER [HIDDEN SITE]

With the name of a site, that site is behind NAT. Only the installation is replaced: the commands of this
environment are on the PATH. Prints what it saw as JSON.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from sklearn.datasets import load_digits

from tests.e2e.virtual_hosts import DEADLINE, VirtualHost, network

DOC = Path(__file__).parents[2] / "docs" / "operate.md"
SITES = ("north", "east", "south")
ADDRESSES = {"office": "192.0.2.1", "north": "192.0.2.11", "east": "192.0.2.12", "south": "192.0.2.13"}
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Chapter:
    files: dict[str, str]
    commands: list[str]

    @property
    def typed(self) -> int:
        """How many commands people type: the installation at four machines, joining at three."""
        times = {"pipx": len(ADDRESSES), "join": len(SITES)}
        return sum(next((n for word, n in times.items() if word in c.split()), 1) for c in self.commands)


def chapter() -> Chapter:
    text = DOC.read_text()
    text = text[text.index("## From nothing to three sites") :]
    text = text[: text.index("\n## ")]
    [task], [shared] = (re.findall(rf"```{kind}\n(.*?)```", text, re.S) for kind in ("python", "toml"))
    commands = [line for block in re.findall(r"```sh\n(.*?)```", text, re.S) for line in block.splitlines()]
    return Chapter({"ward.py": task, "wards.toml": shared}, commands)


class Follower:
    """Does what the chapter says, at the machine that it says."""

    def __init__(self, hosts: dict[str, VirtualHost]) -> None:
        self._hosts = hosts
        self.office = hosts["office"]
        self._tokens: list[str] = []
        self._joining: dict[str, tuple[subprocess.Popen[bytes], Path]] = {}
        self.last = ""

    def follow(self, command: str) -> None:
        if command.startswith("pipx "):
            return
        if command.startswith("pfl-bootstrap "):
            self._in_the_background(command)
        elif command.startswith("pfl-node join "):
            for site, token in zip(SITES, self._tokens, strict=True):
                self._joining[site] = self._hosts[site].start(command.replace("TOKEN", token))
        elif command.startswith("pfl-node ca confirm "):
            words = [f"{site} {self._id(site)}" for site in SITES]
            self.last = self.office.run(command.replace(" ".join(f"{s} ID" for s in SITES), " ".join(words)))
        else:
            self.last = self.office.run(command)
            if command.startswith("pfl-node ca invite "):
                self._tokens = re.findall(r"pfl-node join (\w+)", self.last)

    def output(self, site: str) -> str:
        return self._joining[site][1].read_text()

    def _id(self, site: str) -> str:
        process, out = self._joining[site]
        found = until(lambda: re.search(r"[0-9a-f]{4}(-[0-9a-f]{4}){3}", out.read_text()), process, out)
        return found[0]

    def _in_the_background(self, command: str) -> None:
        process, out = self.office.start(command)
        until(lambda: "listen" in out.read_text(), process, out)


def until(
    look: Callable[[], T | None], process: subprocess.Popen[bytes] | None = None, out: Path | None = None
) -> T:
    end = time.monotonic() + DEADLINE
    while time.monotonic() < end and (process is None or process.poll() is None):
        if found := look():
            return found
        time.sleep(0.2)
    raise AssertionError(f"did not happen:\n{out.read_text() if out else ''}")


def put_scans(hosts: dict[str, VirtualHost], folder: Path) -> None:
    digits = load_digits()
    for number, site in enumerate(SITES):
        mine = slice(number, None, len(SITES))
        np.savez(folder / "scans.npz", x=digits.data[mine], y=digits.target[mine])
        hosts[site].run(f"cp {folder}/scans.npz /srv/scans/")


def exchanged(site: VirtualHost) -> dict[str, Any]:
    """What the node there says of itself, once it has received a model of both others."""

    def look() -> dict[str, Any] | None:
        process, out = site.start(
            f"pfl-node status 127.0.0.1:7946 --data-dir pfl-{site.name} --format json --timeout 20"
        )
        if process.wait(DEADLINE):
            return None
        status: dict[str, Any] = json.loads(out.read_text())
        moved = status.get("models_received", {})  # `doctor` answers, too, while it has opened the port
        received = [peer for peer, models in moved.items() if models]
        return status if len(received) == len(SITES) - 1 else None

    return until(look)


def main(folder: Path, hidden: str = "") -> None:
    written = chapter()
    addresses = {**ADDRESSES, "gateway": "192.0.2.50"} if hidden else ADDRESSES
    hosts = network(addresses, folder, f"{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/sbin:/bin")
    if hidden:
        hosts[hidden].hide(hosts["gateway"])
    put_scans(hosts, folder)
    for name, text in written.files.items():
        (hosts["office"].folder / name).write_text(text)
    follower = Follower(hosts)
    for command in written.commands:
        if command.startswith("pfl-node peers "):
            seen = [exchanged(hosts[site]) for site in SITES]
        follower.follow(command)
    sent = {site: sorted(p.name for p in hosts[site].folder.glob("pfl-*/*")) for site in SITES}
    found = {"typed": written.typed, "peers": follower.last, "status": seen, "files": sent}
    print(json.dumps({**found, "outputs": {site: follower.output(site) for site in SITES}}))
    shutil.rmtree(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
