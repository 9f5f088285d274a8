"""The lab: hosts that are network namespaces, each with an address of its own, and a router between them.

Runs inside namespaces of its own (`inside.py`). Real processes run on the hosts; they can be killed and come back.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.netns.forked_nodes import Forked
from tests.netns.log_analysis import Life
from tests.netns.namespaces import ROOT, netem
from tests.netns.router import OPERATOR
from tests.netns.tun import enter, new_namespace, plug, wake_loopback

PORT = 7946


@dataclass(slots=True)
class Host:
    index: int
    name: str
    address: str
    namespace: int
    device: int
    process: subprocess.Popen[bytes] | Forked | None = None
    lives: list[Life] = field(default_factory=list)

    @property
    def listen(self) -> str:
        return f"{self.address}:{PORT}"


class Lab:
    """`with Lab(50, folder) as lab`. Logs of the hosts are in the folder."""

    def __init__(self, count: int, folder: Path, seed: int = 0) -> None:
        self._handlers = {
            # process 1 would not hear it
            signal.SIGTERM: signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM)),
            # in the background of a shell it is ignored
            signal.SIGINT: signal.signal(signal.SIGINT, signal.default_int_handler),
        }
        self.folder = folder
        self.netem = netem()  # does the kernel the weather?
        folder.mkdir(parents=True, exist_ok=True)
        self.hosts = [self._host(index) for index in range(count)]
        wake_loopback()
        self._mine = plug("lab0", "10.77.255.254")
        self._router = self._start_router(seed)

    def _host(self, index: int) -> Host:
        address = f"10.77.{index // 250}.{index % 250 + 1}"
        with new_namespace() as namespace:
            wake_loopback()
            return Host(index, f"h{index}", address, namespace, plug("eth0", address))

    def _start_router(self, seed: int) -> subprocess.Popen[str]:
        files = {host.name: host.device for host in self.hosts} | {OPERATOR: self._mine}
        names = {_hex(host.address): host.name for host in self.hosts} | {_hex("10.77.255.254"): OPERATOR}
        told = json.dumps({"files": files, "names": names, "seed": seed})
        router = subprocess.Popen(
            [sys.executable, "-m", "tests.netns.router", told],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=list(files.values()),
            text=True,
            cwd=ROOT,
        )
        assert router.stdout
        if not router.stdout.readline():
            raise SystemExit("the router did not start")
        return router

    # -- the network ---------------------------------------------------------------------------------------

    def weather(self, delay: float = 0.0, jitter: float = 0.0, loss: float = 0.0) -> None:
        """Of every way, each direction. Where the kernel can do it, it does, and the router only routes."""
        if not self.netem:
            self.order(do="weather", delay=delay, jitter=jitter, loss=loss)
            return
        for host in self.hosts:
            self._tc(host, netem_words(delay, jitter, loss))

    def split(self, *groups: Collection[Host]) -> None:
        self.order(do="split", groups=[[host.name for host in group] for group in groups])

    def heal(self) -> None:
        self.order(do="heal")

    def uplink(self, host: Host, rate: str) -> None:
        """A token bucket of the kernel for what the host sends, for example 1mbit."""
        self._tc(host, ["tbf", "rate", rate, "burst", "16kb", "latency", "200ms"])

    def sent_bytes(self, host: Host) -> int:
        """On the wire, through the token bucket."""
        shown = self.inside(host, "tc", "-s", "qdisc", "show", "dev", "eth0")
        return int(shown.partition("Sent ")[2].partition(" bytes")[0])

    def inside(self, host: Host, *words: object) -> str:
        """The output of a command in the host's namespace."""
        line, env = [*map(str, words)], {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            line,
            preexec_fn=lambda: enter(host.namespace),
            capture_output=True,
            text=True,
            env=env,
            check=False,
        )
        return done.stdout

    def order(self, **words: Any) -> dict[str, Any]:
        assert self._router.stdin
        assert self._router.stdout
        self._router.stdin.write(json.dumps(words) + "\n")
        self._router.stdin.flush()
        answer: dict[str, Any] = json.loads(self._router.stdout.readline())
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def _tc(self, host: Host, words: Sequence[str]) -> None:
        line = ["tc", "qdisc", "replace", "dev", "eth0", "root", *words]
        subprocess.run(line, preexec_fn=lambda: enter(host.namespace), check=True)

    # -- processes -----------------------------------------------------------------------------------------

    def start(self, host: Host, module: str, *words: object) -> None:
        """In the host's namespace; what it says is appended to the host's log."""
        assert host.process is None
        log = self.log(host).open("ab")
        host.process = subprocess.Popen(
            [sys.executable, "-m", module, *map(str, words)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=self.folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
            preexec_fn=lambda: enter(host.namespace),
            start_new_session=True,
        )
        log.close()
        host.lives.append(Life(time.time()))

    def fork(self, host: Host, *words: object) -> None:
        """`pfl-node WORDS` there, from what `forked.load` has loaded."""
        assert host.process is None
        line = [*map(str, words)]
        host.process = Forked(line, namespace=host.namespace, log=self.log(host), cwd=self.folder)
        host.lives.append(Life(time.time()))

    def kill(self, host: Host, number: signal.Signals = signal.SIGKILL) -> None:
        """At once; for other signals than SIGKILL it takes what it takes."""
        assert host.process
        host.process.send_signal(number)
        if number is signal.SIGKILL:
            self.ended(host)

    def ended(self, host: Host, patience: float = 120.0) -> int:
        """Wait for it; the exit code."""
        assert host.process
        code = host.process.wait(patience)
        host.lives[-1].killed = time.time()
        host.process = None
        return code

    def running(self, host: Host) -> bool:
        return host.process is not None and host.process.poll() is None

    def log(self, host: Host) -> Path:
        return self.folder / f"{host.name}.log"

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *error: object) -> None:
        for host in self.hosts:
            if host.process:
                self.kill(host)
            os.close(host.device)
            os.close(host.namespace)
        os.close(self._mine)
        self._router.kill()
        self._router.communicate()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)


def netem_words(delay: float, jitter: float, loss: float) -> list[str]:
    """The weather of a host's own packets, for tc. netem's jitter goes both ways, ours is on top."""
    late = delay + jitter / 2
    words = ["netem", "limit", "20000"]
    if late:
        words += ["delay", f"{late * 1e3:g}ms", *([f"{jitter / 2 * 1e3:g}ms"] if jitter else [])]
    return [*words, *(["loss", f"{loss * 100:g}%"] if loss else [])]


def _hex(address: str) -> str:
    return socket.inet_aton(address).hex()
