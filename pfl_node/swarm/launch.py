"""`pfl-node swarm`: run it, show it, report it. The exit code is the answer."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

from rich.console import Console

from pfl_node.ops.logs import configure_logs
from pfl_node.ops.loop import run_loop
from pfl_node.settings import Settings
from pfl_node.swarm.baseline import Baseline
from pfl_node.swarm.demo_text import hints, kinds
from pfl_node.swarm.format import quiet, terminal
from pfl_node.swarm.live_view import watching
from pfl_node.swarm.messages import page_of
from pfl_node.swarm.supervisor import Swarm
from pfl_node.swarm.swarm_dir import directory
from pfl_node.swarm.swarm_outcome import SwarmOutcome
from pfl_node.swarm.swarm_report import SwarmReport

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_swarm(
    settings: Settings, *, nodes: int, workers: int | None = None, out: Path | None = None, live: bool = True
) -> int:
    """Until the rounds are done, or Ctrl-C; then the report."""
    console = terminal()
    with directory(out) as folder:
        report = Run(settings, nodes=nodes, workers=workers, out=folder).go(console, live=live)
        if out:
            report.write(out)
    report.show(console, details=True)
    if out and report.worth:
        console.print(f"Journals, models and summary.json are in {out}.", markup=False, soft_wrap=True)
    return report.code


class Run:
    """A swarm, beside it perhaps the same nodes alone, and the signals that end both."""

    def __init__(
        self, settings: Settings, *, nodes: int, workers: int | None, out: Path, compare: bool = False
    ) -> None:
        self.settings = settings.model_copy(update={"log": quiet(settings)})
        self.swarm = Swarm(self.settings, nodes=nodes, workers=workers, out=out)
        self.baseline = Baseline(self.settings, nodes) if compare else None
        self.seconds: float | None = None  # that the swarm took; None: it is still running
        self.killed = False

    def go(self, console: Console, *, live: bool) -> SwarmReport:
        if page := page_of(self.settings, self.swarm.nodes - 1) and page_of(self.settings, 0):
            told = f"Pages: http://{page}/ is that of node-000, node i has that port + i."
            console.print(told, markup=False, soft_wrap=True)
        run_loop(self._go(console, live))
        baseline = self.baseline
        outcome = SwarmOutcome.of(self.swarm, self.seconds or 0.0)
        stopped = any(n.state != "done" for n in outcome.nodes)
        return SwarmReport(
            outcome,
            # A part of the rounds is not to be compared with all of them.
            alone=baseline.alone if baseline and not stopped else None,
            kinds=kinds(self.settings),
            stopped=stopped,
            killed=self.killed,
            notes=[*hints(self.settings, outcome.nodes), *(baseline.notes if baseline else ())],
        )

    async def _go(self, console: Console, live: bool) -> None:
        swarm, loop = self.swarm, asyncio.get_running_loop()
        for number in SIGNALS:
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # nohup
                loop.add_signal_handler(number, self._signalled)
        with watching(swarm, console, kinds=kinds(self.settings), baseline=self.baseline, live=live):
            configure_logs(self.settings.log)
            await self._both()

    async def _both(self) -> None:
        began, baseline = time.monotonic(), self.baseline
        beside = None
        try:
            if baseline:
                await baseline.spawn()
                beside = asyncio.create_task(self._compare(baseline))
            await self.swarm.run()
            self.seconds = time.monotonic() - began
            if beside and not self.swarm.stopping:
                await beside
        finally:
            if beside and baseline:
                beside.cancel()
                await asyncio.gather(beside, return_exceptions=True)
                await baseline.close()

    async def _compare(self, baseline: Baseline) -> None:
        """When all nodes have started: before that every core is busy with imports."""
        await self.swarm.ready.wait()
        await baseline.run()

    def _signalled(self) -> None:
        """The first asks for an end, the second makes one; after the swarm only the comparison is left."""
        if self.baseline:
            self.baseline.skip()
        if self.seconds is None:
            self.killed = self.swarm.stopping
            (self.swarm.kill if self.killed else self.swarm.stop)()
