"""A swarm in the lab: what runs on its hosts, and what their logs and journals tell."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable
from math import inf
from pathlib import Path
from statistics import fmean

from tests.netns import forked_nodes, log_analysis
from tests.netns.expectations import Wishes
from tests.netns.log_analysis import Round, Said
from tests.netns.netns_lab import Host, Lab

SEEDS = 3  # the first hosts; each member is told of all
LOOK = 0.5
# On few cores: `el` takes whatever they have, `gossip` at this pace leaves most of it alone.
PACES = {
    "el": ("policy.name=el", "policy.degree=4"),
    "gossip": ("policy.name=gossip", "policy.delta=4", "policy.n_peers=2", "policy.quiet=10"),
}
NODE = ("train.init=common", "log.format=json", 'eval.on=["test"]')


class Swarm:
    """Nodes, or light members: the bootstrap service, which has the same membership and never trains."""

    def __init__(self, lab: Lab, wishes: Wishes, *, rounds: int | None = None) -> None:
        self.lab = lab
        self.light = wishes.light
        self.rounds = rounds
        self._settings = (*PACES[wishes.policy], *NODE, *wishes.set)
        self._fork = not (wishes.apart or wishes.light)
        if self._fork:
            forked_nodes.load()
        self._read = {host.address: 0 for host in lab.hosts}  # bytes of its log
        self._said: list[Said] = []

    # -- processes -----------------------------------------------------------------------------------------

    def start(self, host: Host) -> None:
        seeds = [w for seed in self.lab.hosts[:SEEDS] if seed is not host for w in ("--peer-seed", seed.listen)]
        words = ["--listen", host.listen, "--insecure", "--data-dir", self.home(host), *seeds]
        if self.light:
            self.lab.start(host, "bootstrap", *words, "--log-format", "json")
            return
        count = len(self.lab.hosts)
        place = [f"task.index={host.index}", f"task.nodes={count}"]
        if not host.lives:  # all begin together; who comes back does not wait for all
            place += [f"start.peers={count - 1}", "start.wait=600"]
        sets = [w for setting in (*self._settings, *place) for w in ("--set", setting)]
        line = [*words, *sets, *(["--rounds", self.rounds] if self.rounds else [])]
        if self._fork:
            self.lab.fork(host, *line)
        else:
            self.lab.start(host, "pfl_node", *line)

    def start_all(self) -> float:
        """When it began."""
        began = time.time()
        for host in self.lab.hosts:
            self.start(host)
        return began

    def stop(self) -> list[int]:
        """In order; the exit codes."""
        here = [host for host in self.lab.hosts if host.process]
        for host in here:
            self.lab.kill(host, signal.SIGTERM)
        return [self.lab.ended(host) for host in here]

    def home(self, host: Host) -> Path:
        return self.lab.folder / f"data-{host.index + 1}"

    # -- what they say -------------------------------------------------------------------------------------

    def said(self) -> list[Said]:
        """By everybody so far."""
        for host in self.lab.hosts:
            path, at = self.lab.log(host), self._read[host.address]
            if not path.exists() or path.stat().st_size == at:
                continue
            with path.open("rb") as file:
                file.seek(at)
                whole, _, _ = file.read().rpartition(b"\n")
            self._read[host.address] = at + len(whole) + 1 if whole else at
            self._said += log_analysis.read(host.address, whole.decode(errors="replace").splitlines())
        self._said.sort()
        return self._said

    def complete(self, since: float, hosts: Iterable[Host] | None = None) -> float:
        """Seconds from then on until all of them had all of them in their views."""
        return log_analysis.complete_at(self.said(), [h.address for h in hosts or self.lab.hosts], since)

    def deaths(self) -> log_analysis.Deaths:
        return log_analysis.deaths(self.said(), {host.address: host.lives for host in self.lab.hosts})

    def suspicions(self) -> int:
        return sum(row.what == "suspected" for row in self.said())

    def journal(self, host: Host) -> list[Round]:
        path = self.home(host) / "journal.jsonl"
        return log_analysis.rounds(path.read_text().splitlines()) if path.exists() else []

    def accuracy(self, hosts: Iterable[Host] | None = None) -> float:
        """Mean of the last that each has measured."""
        last = [[r.accuracy for r in self.journal(h) if r.accuracy is not None] for h in hosts or self.lab.hosts]
        return fmean(found[-1] for found in last if found)

    # -- waiting -------------------------------------------------------------------------------------------

    def until(self, so: Callable[[], bool], patience: float, what: str) -> bool:
        """False: it took too long, which is said."""
        end = time.monotonic() + patience
        while not so():
            if time.monotonic() > end:
                print(f"not within {patience:g} s: {what}", flush=True)
                return False
            time.sleep(LOOK)
        return True

    def full_views(self, since: float, patience: float) -> float:
        self.until(lambda: self.complete(since) < inf, patience, "everybody knows everybody")
        return self.complete(since)
