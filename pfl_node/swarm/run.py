"""`pfl-node swarm`: run it, show it, report it. The exit code is the answer."""

from __future__ import annotations

import asyncio
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from pfl_node.errors import ConfigError, StoreError
from pfl_node.ops.logs import configure_logs
from pfl_node.ops.loop import run_loop
from pfl_node.settings import Settings
from pfl_node.swarm.live import watching
from pfl_node.swarm.parent import Swarm
from pfl_node.swarm.report import Outcome, show


def run_swarm(
    settings: Settings, *, nodes: int, workers: int | None = None, out: Path | None = None, live: bool = True
) -> int:
    """Until the rounds are done, or Ctrl-C; then the report."""
    console = Console()
    with directory(out) as folder:
        outcome = run_and_watch(settings, console, nodes=nodes, workers=workers, out=folder, live=live)
        if out:
            outcome.write(out / "summary.json")
    show(outcome, console)
    if out:
        console.print(f"journals, models and summary.json are in {out}")
    return 0


def run_and_watch(
    settings: Settings, console: Console, *, nodes: int, workers: int | None, out: Path, live: bool
) -> Outcome:
    configure_logs(settings.log)
    return run_loop(_run(settings, console, nodes=nodes, workers=workers, out=out, live=live))


async def _run(
    settings: Settings, console: Console, *, nodes: int, workers: int | None, out: Path, live: bool
) -> Outcome:
    swarm = Swarm(settings, nodes=nodes, workers=workers, out=out)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, swarm.stop)
    began = time.monotonic()
    title = f"{settings.policy.name} on {settings.task.name}: {nodes} nodes, {swarm.workers} processes"
    with watching(swarm, console, title, live=live):
        await swarm.run()
    return Outcome.of(swarm, seconds=time.monotonic() - began)


@contextmanager
def directory(out: Path | None) -> Iterator[Path]:
    """The one asked for, or one that is gone afterwards."""
    if out is None:
        with tempfile.TemporaryDirectory(prefix="pfl-swarm-") as folder:
            yield Path(folder)
        return
    if (out / "nodes").exists():
        raise ConfigError(f"{out} holds an earlier swarm; give another directory with --out, or remove it first")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot make {out}: {error.strerror or error}") from error
    yield out
