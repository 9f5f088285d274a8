"""Watching real nodes: events over gRPC, the page's JSON, metrics, who may see it, and a report for helpers."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import subprocess
import tarfile
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pfl_node.errors import ConfigError, PeerError, PeerGone
from pfl_node.ops.events_service import OF_ANY
from pfl_node.ops.prometheus import FIGURES
from pfl_node.types import PeerId
from pfl_node.wire import peer_pb2 as pb
from tests.e2e.in_process import DEADLINE, Life, Town, play
from tests.e2e.processes import fast, own_process_command, preloaded_command, processes
from tests.e2e.web import get, live
from tests.unit.wire.small_host import layout_of, model_of

EL = {"name": "el"}
PAGE = {"listen": "127.0.0.1:0", "every": 0.2}
TOKEN = "a-token-of-sixteen-and-more"


async def pair(town: Town, **settings: Any) -> tuple[Life, Life]:
    """Two nodes that learn with each other; the first has a page."""
    http = {**PAGE, **settings.pop("http", {})}
    ann = await town.runs("ann", policy=EL, http=http, **settings)
    bob = await town.runs("bob", policy=EL, peer_seed=[ann.address], **settings)
    await ann.until(lambda: ann.node.host.received and bob.node.host.received)
    await ann.rounds(3)
    return ann, bob


async def watch(node: Life, **request: Any) -> AsyncGenerator[pb.Event, None]:
    async with grpc.aio.insecure_channel(node.address) as channel:
        call: Any = channel.unary_stream(
            "/pfl.v1.Peer/WatchEvents",
            request_serializer=pb.WatchRequest.SerializeToString,
            response_deserializer=pb.Event.FromString,
        )
        async for event in call(pb.WatchRequest(**request), timeout=DEADLINE):
            yield event


async def shell(town: Town, *words: object) -> subprocess.CompletedProcess[str]:
    """The real command, beside the nodes of this process."""
    return await asyncio.to_thread(preloaded_command, *words, "--timeout", "60", cwd=town.path)


# -- events ----------------------------------------------------------------------------------------------------


def test_a_watcher_sees_rounds_models_and_members_come_and_go(tmp_path: Path) -> None:
    async def scene(town: Town) -> None:
        ann, bob = await pair(town)
        past = [e async for e in watch(ann)]
        assert [e.number for e in past] == sorted({e.number for e in past})
        assert {"opened", "started", "joined", "round", "sent", "received"} <= {e.kind for e in past}
        joined = json.loads(next(e.json for e in past if e.kind == "joined"))
        assert (joined["peer"], joined["name"]) == (bob.node.id, "bob")
        sent = json.loads(next(e.json for e in past if e.kind == "sent"))
        assert (sent["peer"], sent["call"]) == (bob.node.id, "SendModel")
        assert sent["bytes"] > 1000
        opened = json.loads(next(e.json for e in past if e.kind == "opened"))
        assert opened["settings"]["policy"]["name"] == "el"

        live = watch(ann, follow=True, kinds=["left", "round"], after=past[-1].number)
        assert (await anext(live)).kind == "round"
        await bob.stops()
        async for event in live:
            if event.kind == "left":
                break
        assert json.loads(event.json)["name"] == "bob"
        await live.aclose()

    play(tmp_path, scene)


def test_a_stream_that_follows_ends_with_the_node(tmp_path: Path) -> None:
    async def scene(town: Town) -> None:
        ann = await town.runs("ann", policy={"name": "local"}, rounds=3)
        following = asyncio.create_task(_kinds(watch(ann, follow=True)))
        assert await ann.ends() == "done"
        await ann.close()
        async with asyncio.timeout(DEADLINE):
            assert (await following)[-1] == "finished"

    play(tmp_path, scene)


def test_those_who_watch_from_afar_leave_room_for_the_page(tmp_path: Path) -> None:
    async def scene(town: Town) -> None:
        life = await (await town.runs("n", policy={"name": "local"}, train={"steps": 10_000_000})).trains()
        watchers = [watch(life, follow=True, kinds=["opened"]) for _ in range(OF_ANY)]
        for watcher in watchers:
            await anext(watcher)
        with pytest.raises(grpc.aio.AioRpcError, match="you have 16 watchers already") as refused:
            await anext(watch(life, follow=True))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        with life.node.node_observer.hub.watch():
            pass
        await watchers[0].aclose()
        await life.until(lambda: life.node.node_observer.hub.watchers == OF_ANY - 1)
        watchers[0] = watch(life, follow=True)
        await anext(watchers[0])
        for watcher in watchers:
            await watcher.aclose()

    play(tmp_path, scene)


async def _kinds(events: AsyncIterator[pb.Event]) -> list[str]:
    return [event.kind async for event in events]


def test_refused_and_failed_messages_are_told_with_peer_and_reason(tmp_path: Path) -> None:
    async def scene(town: Town) -> None:
        ann, bob = await pair(town)
        strange = model_of(layout_of(5))
        with pytest.raises(PeerError):
            await bob.node.client.send(PeerId(ann.node.id), ann.address, strange, round=ann.round + 5)
        refused = [json.loads(e.json) async for e in watch(ann, kinds=["refused"])]
        assert (bob.node.id, "layout") in {(r["peer"], r["reason"]) for r in refused}
        assert ann.node.recorder
        ann.node.recorder.failed("SendModel", PeerGone(bob.node.id, "no answer"))
        failed = [json.loads(e.json) async for e in watch(ann, kinds=["failed"])]
        assert {"call": "SendModel", "peer": bob.node.id, "reason": "gone", "text": "no answer"} in failed

    play(tmp_path, scene)


def test_a_checkpoint_is_told_and_one_that_fails_too(tmp_path: Path) -> None:
    async def scene(town: Town) -> None:
        ann = await town.runs("ann", policy={"name": "local"}, store={"checkpoint_every": 1})
        hub = ann.node.node_observer.hub
        await ann.until(lambda: hub.counts["checkpoint"])
        written = hub.recent(kinds={"checkpoint"})[-1].data
        assert written["round"] >= 0
        assert ann.node.node_observer.checkpoint_at is not None
        assert hub.counts["checkpoint_failed"] == 0

    play(tmp_path, scene)


# -- the page's JSON -------------------------------------------------------------------------------------------


async def seen(life: Life, path: str, good: Callable[[Any], Any]) -> Any:
    """The first answer that is good: what others tell is asked for now and then."""
    async with asyncio.timeout(DEADLINE):
        while True:
            if good(found := (await get(life, path)).json):
                return found
            await asyncio.sleep(0.05)


def test_the_api_tells_of_this_node_and_of_the_swarm(tmp_path: Path) -> None:
    async def scene(town: Town) -> None:
        ann, bob = await pair(town, eval={"every": 1})
        status = (await get(ann, "/api/status")).json
        assert (status["name"], status["state"], status["policy"]) == ("ann", "training", "el")
        await ann.until(lambda: bob.round >= 2 and ann.node.host.received[bob.node.id])
        swarm = await seen(ann, "/api/swarm", lambda s: s["ties"]["total"].get(ann.node.id, {}).get(bob.node.id))
        nodes = {n["name"]: n for n in swarm["nodes"]}
        assert set(nodes) == {"ann", "bob"}
        assert nodes["ann"]["me"]
        assert nodes["bob"]["doing"] == "training"
        assert nodes["bob"]["measured"]["test"]["accuracy"] > 0
        assert nodes["bob"]["address"] == bob.address
        history = (await seen(ann, "/api/history", lambda h: len(h["nodes"].get(bob.node.id, ())) >= 2))["nodes"]
        assert {"round", "time", "test_accuracy", "bytes_sent"} <= set(history[ann.node.id][0])
        events = (await get(ann, "/api/events?kinds=round,joined&last=5")).json["events"]
        assert {e["kind"] for e in events} <= {"round", "joined"}
        assert 0 < len(events) <= 5

    play(tmp_path, scene)


def test_the_live_stream_brings_events_and_the_swarm_and_says_goodbye(tmp_path: Path) -> None:
    async def scene(town: Town) -> None:
        ann, _ = await pair(town)
        seen: dict[str, Any] = {}
        rounds = 0
        async with asyncio.timeout(DEADLINE):
            stream = live(ann)
            async for event, data in stream:
                seen[event] = data
                rounds += sum(e["kind"] == "round" for e in data.get("events", ()))
                if rounds and "swarm" in seen:
                    break
            assert seen["tick"]["status"]["name"] == "ann"
            assert len(seen["swarm"]["nodes"]) == 2
            closing = asyncio.create_task(ann.close())
            assert [event async for event, _ in stream][-1] == "bye"
            await closing

    play(tmp_path, scene)


def test_the_others_are_asked_only_while_somebody_watches(tmp_path: Path) -> None:
    async def scene(town: Town) -> None:
        ann, bob = await pair(town, http={"every": 600.0})
        calls = bob.node.host.calls
        await ann.rounds(5)
        assert calls["GetStatus", "ok"] == 0
        await asyncio.gather(*(get(ann, "/api/swarm") for _ in range(8)))
        assert calls["GetStatus", "ok"] <= 1, "eight watchers cost as much as one"

    play(tmp_path, scene)


def test_a_node_that_died_is_shown_as_such_and_its_own_series_are_dropped(tmp_path: Path) -> None:
    async def scene(town: Town) -> None:
        ann, bob = await pair(town)
        assert f'peer="{bob.node.id}"' in (await get(ann, "/metrics")).text
        await bob.stops()
        await ann.until(lambda: not ann.node.peers())
        nodes = (await get(ann, "/api/swarm")).json["nodes"]
        assert {n["name"]: n["state"] for n in nodes} == {"ann": "alive", "bob": "left"}
        assert f'peer="{bob.node.id}"' not in (await get(ann, "/metrics")).text

    play(tmp_path, scene)


def test_names_of_peers_come_as_json_and_never_as_markup(tmp_path: Path) -> None:
    async def scene(town: Town) -> None:
        nasty = "<img src=x onerror=alert(1)>"
        ann = await town.runs("ann", policy=EL, http=PAGE)
        await town.runs(nasty, policy=EL, peer_seed=[ann.address])
        await ann.until(lambda: len(ann.node.peers()) == 1)
        answer = await get(ann, "/api/swarm")
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert nasty in {n["name"] for n in answer.json["nodes"]}

    play(tmp_path, scene)


# -- metrics ---------------------------------------------------------------------------------------------------


def test_the_metrics_are_those_of_the_table_and_hold_the_nodes_figures(tmp_path: Path) -> None:
    async def scene(town: Town) -> None:
        ann, bob = await pair(town, rounds=10_000, store={"checkpoint_every": 1}, eval={"every": 1})
        ann.node.host.count("SendModel", "layout", bob.node.id, 0)
        answer = await get(ann, "/metrics")
        assert answer.headers["content-type"].startswith("text/plain")
        families = {f.name: f for f in text_string_to_metric_families(answer.text)}
        ours = {name for name in families if name.startswith("pfl_node")}
        expected = {f.name + ("_info" if f.kind == "info" else "") for f in FIGURES}
        assert ours == expected
        value = {
            (s.name, *sorted(s.labels.items())): s.value for family in families.values() for s in family.samples
        }
        assert value["pfl_node_state", ("state", "training")] == 1
        assert value["pfl_node_rounds_total",] >= 3
        assert value["pfl_node_planned_rounds",] == 10_000
        assert 0 < value["pfl_node_accuracy_ratio", ("split", "test")] <= 1
        assert value["pfl_node_peer_transferred_bytes_total", ("direction", "sent"), ("peer", bob.node.id)] > 0
        assert value["pfl_node_peer_transferred_bytes_total", ("direction", "received"), ("peer", bob.node.id)] > 0
        assert value["pfl_node_refused_messages_total", ("reason", "layout")] == 1
        assert value["pfl_node_members", ("state", "alive")] == 2
        assert value["pfl_node_checkpoint_age_seconds",] >= 0
        assert value["process_resident_memory_bytes",] > 1 << 20
        for family in families.values():
            assert family.documentation, family.name

    play(tmp_path, scene)


# -- who may see it --------------------------------------------------------------------------------------------


def test_on_loopback_only_names_of_loopback_are_answered(tmp_path: Path) -> None:
    async def scene(town: Town) -> None:
        ann = await town.listens("ann", http=PAGE)
        assert (await get(ann, "/api/status", host="localhost:1")).status == 200
        assert (await get(ann, "/api/status", host="[::1]:1")).status == 200
        assert (await get(ann, "/api/status", host="evil.example")).status == 403

    play(tmp_path, scene)


def test_with_a_token_nothing_is_told_to_those_who_do_not_show_it(tmp_path: Path) -> None:
    async def scene(town: Town) -> None:
        ann = await town.listens("ann", http={**PAGE, "token": TOKEN})
        for path in ("/", "/api/status", "/api/swarm", "/api/live", "/api/events", "/api/history", "/metrics"):
            answer = await get(ann, path)
            assert answer.status == 401, path
            assert "ann" not in answer.text
            assert (await get(ann, path, authorization=f"Bearer {TOKEN[:-1]}")).status == 401
        assert (await get(ann, "/api/status", authorization=f"Bearer {TOKEN}")).json["name"] == "ann"
        assert (await get(ann, "/metrics", authorization=f"Bearer {TOKEN}")).status == 200
        assert (await get(ann, "/healthz")).json == {"state": "starting"}

    play(tmp_path, scene)


def test_a_browser_is_led_to_a_form_and_keeps_a_cookie_that_is_not_the_token(tmp_path: Path) -> None:
    async def scene(town: Town) -> None:
        ann = await town.listens("ann", http={**PAGE, "token": TOKEN})
        led = await get(ann, "/", accept="text/html")
        assert (led.status, led.headers["location"]) == (303, "/login")
        assert "token" in (await get(ann, "/login")).text.lower()
        wrong = await get(ann, "/login", method="POST", body=b"token=no")
        assert (wrong.status, "set-cookie" in wrong.headers) == (401, False)
        right = await get(ann, "/login", method="POST", body=f"token={TOKEN}".encode())
        cookie = right.headers["set-cookie"]
        assert right.status == 303
        assert TOKEN not in cookie
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        shown = cookie.partition(";")[0]
        assert (await get(ann, "/api/status", cookie=shown)).status == 200
        assert (await get(ann, "/api/status", cookie=shown[:-1] + "x")).status == 401

    play(tmp_path, scene)


def test_the_page_needs_nothing_from_elsewhere_and_may_be_kept(tmp_path: Path) -> None:
    async def scene(town: Town) -> None:
        ann = await town.listens("ann", http=PAGE)
        page = await get(ann, "/")
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "//" not in re.sub(r"<!doctype html>", "", page.text)
        assert page.headers["cache-control"] == "no-store"
        for path in re.findall(r'(?:src|href)="(/static/[^"]+)"', page.text):
            file = await get(ann, path)
            assert (file.status, "immutable" in file.headers["cache-control"]) == (200, True)
        assert (await get(ann, "/static/0000/style.css")).status == 404
        assert (await get(ann, "/static/..%2f..%2fapp.py/x.js")).status == 404

    play(tmp_path, scene)


@pytest.mark.parametrize(
    ("path", "status"),
    [("/api/events?kinds=sneezed", 400), ("/api/events?last=-1", 400), ("/api/nothing", 404), ("/readyz", 503)],
)
def test_questions_that_make_no_sense_are_answered_in_a_line(tmp_path: Path, path: str, status: int) -> None:
    async def scene(town: Town) -> None:
        ann = await town.listens("ann", http=PAGE)
        assert (await get(ann, path)).status == status
        assert (await get(ann, "/api/status", method="POST")).status == 405

    play(tmp_path, scene)


def test_a_page_on_a_port_that_is_taken_is_a_clear_mistake(tmp_path: Path) -> None:
    async def scene(town: Town) -> None:
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            port = other.getsockname()[1]
            with pytest.raises(ConfigError, match=f"the page on 127.0.0.1:{port}: port {port} is in use"):
                await town.listens("ann", http={"listen": f"127.0.0.1:{port}"})

    play(tmp_path, scene)


# -- on the command line ---------------------------------------------------------------------------------------


def test_events_are_printed_for_people_and_for_programs(tmp_path: Path) -> None:
    async def scene(town: Town) -> None:
        ann, _ = await pair(town)
        table = await shell(town, "events", ann.address, "--kind", "joined")
        assert re.search(r"^\d\d:\d\d:\d\d joined +peer=bob .*name=bob", table.stdout)
        rows = await shell(town, "events", ann.address, "--format", "json")
        events = [json.loads(line) for line in rows.stdout.splitlines()]
        assert {"number", "time", "kind", "data"} == set(events[0])
        last = await shell(town, "events", ann.address, "--last", "2")
        assert len(last.stdout.splitlines()) == 2
        wrong = await shell(town, "events", ann.address, "--kind", "rounds")
        assert wrong.returncode == 2
        assert wrong.stderr == "pfl-node: there is no event kind 'rounds': did you mean 'round'?\n"

    play(tmp_path, scene)


def test_a_bug_report_has_what_helps_and_no_model_no_data_and_no_secret(tmp_path: Path) -> None:
    async def scene(town: Town) -> None:
        ann, _ = await pair(town, http={"token": TOKEN})
        out = tmp_path / "report.tar.gz"
        done = await shell(town, "bugreport", ann.address, "--out", out)
        assert done.returncode == 0, done.stderr
        files = unpacked(out)
        assert set(files) == {
            *("status.json", "peers.json", "events.jsonl", "settings.json", "versions.json"),
            *("journal.jsonl", "logs.txt"),
        }
        assert all(name in done.stdout for name in files)
        assert json.loads(files["settings.json"])["http"]["token"] == "***"
        assert TOKEN not in "".join(files.values())
        assert json.loads(files["versions.json"])["node"]["version"]
        assert max(map(len, files.values())) < 1 << 20
        again = await shell(town, "bugreport", ann.address, "--out", out)
        assert again.returncode == 2
        assert again.stderr == f"pfl-node: {out} exists; choose another name with --out\n"

    play(tmp_path, scene)


def test_a_bug_report_of_a_directory_tells_what_it_ran_with(tmp_path: Path) -> None:
    async def scene(town: Town) -> None:
        ann = await town.runs("ann", policy={"name": "local"}, rounds=2, http={**PAGE, "token": TOKEN})
        await ann.ends()
        await ann.close()

    play(tmp_path, scene)
    out = tmp_path / "report.tar.gz"
    assert own_process_command("bugreport", tmp_path / "ann", "--out", out).returncode == 0
    files = unpacked(out)
    assert json.loads(files["settings.json"])["policy"]["name"] == "local"
    assert TOKEN not in "".join(files.values())
    assert '"event":"round"' in files["journal.jsonl"]
    assert {"model.safetensors", "journal.jsonl"} <= {f["name"] for f in json.loads(files["files.json"])}
    wrong = own_process_command("bugreport", tmp_path)
    assert wrong.returncode == 2
    assert "is not a data directory" in wrong.stderr


def unpacked(archive: Path) -> dict[str, str]:
    with tarfile.open(archive) as tar:
        return {Path(m.name).name: tar.extractfile(m).read().decode() for m in tar}  # type: ignore[union-attr]


def test_a_daemon_with_a_page_says_where_it_is_and_a_signal_ends_it_in_order(tmp_path: Path) -> None:
    with processes(tmp_path, preloaded=True) as start:
        node = start("pfl_node", "--http", "127.0.0.1:0", "--policy", "local", "--data-dir", "data", *fast())
        url = node.listening["page"]
        node.says('"event": "round"')
        with urlopen(f"{url}api/live", timeout=60) as watching:  # somebody still looks when the signal comes
            assert watching.readline() == b"event: tick\n"
            node.popen.send_signal(signal.SIGTERM)
            assert node.wait() == 0
        assert '"how":"stopped"' in (tmp_path / "data" / "journal.jsonl").read_text()
        said = [json.loads(line) for line in node.output.splitlines()]  # all of it, on stdout and stderr, is JSON
        assert (said[0]["event"], said[-1]["event"]) == ("listening", "finished")


def test_for_programs_even_the_last_words_of_a_daemon_are_json(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        done = preloaded_command("--listen", taken, cwd=tmp_path)
        told = json.loads(done.stderr)
        assert (done.returncode, done.stdout, told["level"]) == (1, "", "error")
        assert f"cannot listen on {taken}" in told["event"]
        done = preloaded_command("--listen", taken, "--log-format", "console", cwd=tmp_path)
        assert (done.returncode, done.stderr.startswith("pfl-node: cannot listen on")) == (1, True)
