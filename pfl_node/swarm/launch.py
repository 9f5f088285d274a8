"""Runs a swarm with its live view and its report, for `pfl-node swarm` and `demo`."""

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
from pfl_node.swarm.demo import hints, kinds
from pfl_node.swarm.format import quiet, terminal
from pfl_node.swarm.live_view import showing
from pfl_node.swarm.messages import directory, page_address
from pfl_node.swarm.supervisor import Swarm
from pfl_node.swarm.swarm_outcome import SwarmOutcome
from pfl_node.swarm.swarm_report import SwarmReport

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_swarm(
    settings: Settings, *, nodes: int, workers: int | None = None, out: Path | None = None, live: bool = True
) -> int:
    """Until all rounds are done or Ctrl-C. Prints the report and returns the exit code."""
    console = terminal()
    with directory(out) as folder:
        report = Run(settings, nodes=nodes, workers=workers, out=folder).start(console, live=live)
        if out:
            report.write(out)
    report.show(console, details=True)
    if out and report.has_results:
        console.print(f"Journals, models and summary.json are in {out}.", markup=False, soft_wrap=True)
    return report.code


class Run:
    """A swarm, optionally the same nodes alone for comparison, and the signals that stop both."""

    def __init__(
        self, settings: Settings, *, nodes: int, workers: int | None, out: Path, compare: bool = False
    ) -> None:
        self.settings = settings.model_copy(update={"log": quiet(settings)})
        self.swarm = Swarm(self.settings, nodes=nodes, workers=workers, out=out)
        self.baseline = Baseline(self.settings, nodes) if compare else None
        self.seconds: float | None = None  # that the swarm took; None: it is running
        self.killed = False

    def start(self, console: Console, *, live: bool) -> SwarmReport:
        if page := page_address(self.settings, self.swarm.nodes - 1) and page_address(self.settings, 0):
            line = f"Pages: http://{page}/ is node-000's; node i listens on that port + i."
            console.print(line, markup=False, soft_wrap=True)
        run_loop(self._run(console, live))
        baseline = self.baseline
        outcome = SwarmOutcome.of(self.swarm, self.seconds or 0.0)
        stopped = any(n.state != "done" for n in outcome.nodes)
        return SwarmReport(
            outcome,
            # The comparison ran all rounds; a part of them cannot be compared with it.
            alone=baseline.alone if baseline and not stopped else None,
            kinds=kinds(self.settings),
            stopped=stopped,
            killed=self.killed,
            notes=[*hints(self.settings, outcome.nodes), *(baseline.notes if baseline else ())],
        )

    async def _run(self, console: Console, live: bool) -> None:
        swarm, loop = self.swarm, asyncio.get_running_loop()
        for number in SIGNALS:
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # nohup
                loop.add_signal_handler(number, self._signalled)
        with showing(swarm, console, kinds=kinds(self.settings), baseline=self.baseline, live=live):
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
        """Once all nodes have started: until then the cores are busy with imports."""
        await self.swarm.ready.wait()
        await baseline.run()

    def _signalled(self) -> None:
        """The first signal stops the swarm, the second kills it. Afterwards a signal skips the comparison."""
        if self.baseline:
            self.baseline.skip()
        if self.seconds is None:
            self.killed = self.swarm.stopping
            (self.swarm.kill if self.killed else self.swarm.stop)()
