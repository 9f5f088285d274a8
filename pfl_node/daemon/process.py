"""The daemon: one node in the foreground until its rounds are done or a signal arrives."""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import signal
import sys
import tomllib
from io import StringIO
from typing import Any

import structlog

from pfl_node.daemon.assemble import DaemonNode
from pfl_node.daemon.disk_store import DiskStore
from pfl_node.daemon.state_lines import StateLines
from pfl_node.daemon.tls_setup import check_pair_keys
from pfl_node.errors import Reason, TaskError
from pfl_node.failpoints import arm
from pfl_node.learning.trainer import TrainerThread
from pfl_node.node.startup import check_lab
from pfl_node.ops.log_lines import as_line, for_people
from pfl_node.ops.logs import configure_logs
from pfl_node.ops.loop import run_loop
from pfl_node.policies import load_policy
from pfl_node.settings import Settings
from pfl_node.settings.redact import shown
from pfl_node.settings.toml import toml

log = structlog.get_logger(__name__)

QUIET = ("warning", "error")  # levels of the log


def run_daemon(settings: Settings) -> int:
    """Returns the exit code. Errors of the user are raised as PflError."""
    os.umask(0o077)  # checkpoints contain a model that was trained on private data
    configure_logs(settings.log)
    if not for_people(settings.log.format, sys.stderr):
        logging.captureWarnings(True)
    if points := arm():
        log.warning("fail points are active", **points)
    check_lab(load_policy(settings.policy.name), settings, lab=False)  # before the node creates a directory
    check_pair_keys(settings)
    return run_loop(_run(settings))


def join_line(settings: Settings, address: str) -> str:
    """The command with which another node joins this run, without secrets."""
    defaults = Settings()
    words = ["pfl-node", "--peer-seed", address]
    for flag, mine, default in (
        ("--run", settings.run, defaults.run),
        ("--policy", settings.policy.name, defaults.policy.name),
        ("--task", settings.task.name, defaults.task.name),
        ("--rounds", settings.rounds, defaults.rounds),
        ("--seed", settings.seed, defaults.seed),
    ):
        if mine != default:
            words += [flag, str(mine)]
    for section, values in (
        ("policy", settings.policy.options),
        ("task", settings.task.options),
        ("train", settings.train.model_dump(exclude_defaults=True)),
        ("membership", settings.membership.model_dump(exclude_defaults=True)),
    ):
        for key, value in values.items():
            words += ["--set", f"{section}.{key}={as_set(shown(key, value))}"]
    if settings.insecure:
        words.append("--insecure")
    if settings.tls.on:
        words.append("--tls")
    return shlex.join(words)


def as_set(value: Any) -> str:
    """A value as `--set` reads it back: TOML, without quotes around a text unless it would be read as something
    else."""
    if not isinstance(value, str) or not value or value != value.strip():
        return toml(value)
    try:
        tomllib.loads(f"value = {value}")
    except ValueError:
        return value
    return toml(value)


async def _run(settings: Settings) -> int:
    trainer = TrainerThread()
    node = DaemonNode(settings, DiskStore.open(settings.data_dir), trainer)
    try:
        await node.start()
        _on_signals(node)
        _announce(settings, node)
        how = await node.run()
        return _ended(how, node)
    finally:
        await node.close()
        await trainer.close()


def _ended(how: str, node: DaemonNode) -> int:
    """Log the result; exit code 1 if the disk did not accept it."""
    if node.recorder and node.recorder.unwritten:
        what = ", ".join(node.recorder.unwritten)
        hint = "free some space or fix the permissions, then restart: the node continues from its last checkpoint"
        log.error(f"finished, but {what} could not be written in {node.home.path}: {hint}", how=how)
        return 1
    model = str(node.home.model) if node.recorder else None
    if text := _misfits(node):
        log.warning(f"finished, but {text}", how=how, model=model)
    else:
        log.info("finished", how=how, model=model)
    return 0


def _announce(settings: Settings, node: DaemonNode) -> None:
    """Print the address and how to join, on stdout, in the format of the logs. If only warnings are logged for
    people, print when the node has joined and when it is done."""
    if settings.log.level in QUIET and for_people(settings.log.format, sys.stdout, sys.stderr):
        StateLines(node, _say)
        return
    join, page = join_line(settings, node.address), node.node_observer.page
    if not for_people(settings.log.format, sys.stdout, sys.stderr):
        facts = {"name": node.name, "id": node.id, "address": node.address, "data_dir": str(node.home.path)}
        _say(as_line("listening", **facts, join=join, page=page and page.url))
        return
    _say(f"{node.name} ({node.id}) listens on {node.address}, data in {node.home.path}")
    _say(f"another node joins with: {join}")
    if page:
        _say(f"its page is at {page.url}")


def _say(line: str) -> None:
    """A full disk or a closed pipe costs the line, not the node."""
    try:
        print(line, flush=True)
    except OSError as error:
        log.warning("cannot write to stdout", line=line, error=error.strerror)
        sys.stdout = StringIO()  # the old one still buffers the line and would fail at exit


def _on_signals(node: DaemonNode) -> None:
    """The first SIGTERM or SIGINT shuts the node down cleanly, the second ends it immediately. SIGHUP reloads the
    task. If it was sent because the node's terminal was closed, it shuts the node down cleanly; under nohup it is
    ignored."""
    loop = asyncio.get_running_loop()
    signals = (signal.SIGTERM, signal.SIGINT)

    def handle(number: signal.Signals) -> None:
        log.info("stopping", signal=number.name, hint="send it again to stop immediately")
        node.stop()
        for s in signals:
            loop.remove_signal_handler(s)
            signal.signal(s, signal.SIG_DFL)

    had_terminal = _has_terminal()

    def hang_up() -> None:
        if had_terminal and not _has_terminal():
            log.info("stopping", signal="SIGHUP", hint="its terminal was closed")
            node.stop()
        elif not reloading:
            reloading.append(asyncio.create_task(_reload(node)))
            reloading[0].add_done_callback(reloading.remove)

    reloading: list[asyncio.Task[None]] = []
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        loop.add_signal_handler(signal.SIGHUP, hang_up)
    for number in signals:
        loop.add_signal_handler(number, handle, number)


async def _reload(node: DaemonNode) -> None:
    """The node has logged the reason of a failure, unless it has not started to learn."""
    try:
        await node.reload()
    except TaskError as error:
        if node.reloads is None:
            log.warning("the task was not reloaded", error=str(error))


def _has_terminal() -> bool:
    """Closing a terminal detaches it from the processes that it controlled."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _misfits(node: DaemonNode) -> str:
    """Messages that were refused for their layout, here or by peers; empty: none."""
    here = node.host.refused.get(Reason.LAYOUT, 0)
    failures = node.recorder.failures if node.recorder else {}
    there = sum(n for (_, why), n in failures.items() if why == Reason.LAYOUT)
    if not here + there:
        return ""
    hint = "do all nodes have the same task, model and policy?"
    return f"{here} messages did not fit this node's layout, and {there} of its own did not fit its peers': {hint}"
