"""A member that makes a node write its log."""

from __future__ import annotations

import json
import logging
from io import StringIO
from pathlib import Path

import structlog

from pfl_node.membership.member import State
from pfl_node.ops.events import PER_MINUTE, Hub
from pfl_node.ops.log_lines import LINES, LogLimit
from pfl_node.ops.logs import configure_logs
from pfl_node.settings import LogSettings
from tests.attacks.conftest import Figure
from tests.e2e.in_process import Town, play


def test_a_member_that_joins_and_leaves_all_the_time_writes_a_bounded_log(tmp_path: Path, figure: Figure) -> None:
    async def scene(town: Town) -> None:
        stream = StringIO()
        ann = await town.runs("ann", policy={"name": "local"})
        bob = await town.runs("bob", policy={"name": "local"}, peer_seed=[ann.address])
        await bob.trains()
        configure_logs(LogSettings(level="info", format="json"), stream)
        eve = next(m for m in ann.node.membership.alive())
        for n in range(10_000):
            flapping = State.LEFT if n % 2 else State.ALIVE
            said = type(eve)(eve.id, eve.name, eve.address, eve.role, eve.run, 0, 10 + n, flapping)
            await ann.node.membership.merge([said], eve.id, "")
        lines = stream.getvalue().splitlines()
        logged = sum(json.loads(line)["event"] in ("joined", "left") for line in lines)
        assert logged <= LINES
        assert len(lines) <= 2 * LINES
        figure(
            "a member that joins and leaves 10,000 times",
            "3.0 MB/s of log",
            f"{logged} lines, {len(stream.getvalue()) / 1e6:.2f} MB",
        )

    play(tmp_path, scene)


def test_events_of_one_kind_are_limited_per_minute_and_watchers_learn_how_many_are_missing(figure: Figure) -> None:
    now = 0.0
    hub = Hub(clock=lambda: now)
    with hub.watch(limit=10 * PER_MINUTE) as watch:
        for _ in range(5 * PER_MINUTE):
            hub.tell("refused", {"call": "SendModel", "peer": "eve", "reason": "flood", "bytes": 0})
        hub.tell("died", {"peer": "ann"})
        sent = watch.take()
        passed = sum(event.kind == "refused" for event in sent)
        assert passed == PER_MINUTE
        assert sent[-1].kind == "died"
        assert sent[0].data == {"count": 4 * PER_MINUTE}
        now = 60.0
        hub.tell("refused", {"call": "SendModel", "peer": "eve", "reason": "flood", "bytes": 0})
        assert [event.kind for event in watch.take()] == ["refused"]
    assert hub.counts["refused"] == 5 * PER_MINUTE + 1
    figure("30,000 refused calls in a minute, events sent to a watcher", "30,000", f"{passed:,}")


def test_what_was_suppressed_is_counted_and_errors_have_lines_of_their_own() -> None:
    now = 0.0
    limit, stream = LogLimit(lambda: now), StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(message)s"))
    handler.addFilter(limit)
    logging.basicConfig(handlers=[handler], level="INFO", force=True)
    for n in range(LINES + 50):
        logging.getLogger("x").info("line %d", n)
    logging.getLogger("x").error("an error")
    assert stream.getvalue().count("\n") == LINES + 1
    now = 60.0
    logging.getLogger("x").info("later")
    assert stream.getvalue().splitlines()[-2:] == ["suppressed 50 lines of the log in the last minute", "later"]
    structlog.reset_defaults()
