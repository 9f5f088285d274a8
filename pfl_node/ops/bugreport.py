"""One archive with the information needed to help with a node; without models, data and secrets."""

from __future__ import annotations

import io
import json
import os
import tarfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pfl_node.address import is_loopback, parse_address
from pfl_node.errors import ConfigError, StoreError
from pfl_node.jsonable import json_object
from pfl_node.ops.environment import environment
from pfl_node.ops.history import tail

Part = tuple[str, str, Any]  # file name, description, content (text or JSON values)
LINES = 500  # lines of a journal
MOST = 4 << 20  # bytes of the journal that are read
FAILURE_KINDS = ("warning", "died", "refused", "failed", "checkpoint_failed", "reload_failed", "suspected")

HINT = """\
Logs are not in this archive: a node writes them to its stderr and keeps none.

  docker compose logs --no-color --since 1h node
  kubectl logs --since=1h POD
  journalctl --unit UNIT --since -1h
  --log-level debug --log-format json      for a node that is started again

Warnings and failures that the node remembers:

"""


def from_node(
    address: str,
    status: Mapping[str, Any],
    members: Iterable[Mapping[str, Any]],
    events: Iterable[Mapping[str, Any]],
) -> Iterator[Part]:
    """The report of a running node; includes its journal if its directory is on this machine."""
    recent = list(events)
    opened: Mapping[str, Any] = next((e["data"] for e in reversed(recent) if e["kind"] == "opened"), {})
    yield "status.json", "the status of the node", status
    yield "peers.json", "the members it knows", list(members)
    yield "events.jsonl", f"the last {len(recent)} events", _lines(recent)
    if "settings" in opened:
        yield "settings.json", "the settings it runs with, secrets hidden", opened["settings"]
    its = {key: opened[key] for key in ("version", "python", "system", "pid") if key in opened}
    yield "versions.json", "the node's versions, and those of this machine", {"node": its, "here": environment()}
    folder = opened.get("data_dir")
    if isinstance(folder, str) and is_loopback(parse_address(address)[0]) and _journal(Path(folder)).is_file():
        yield _tail(Path(folder))
    yield "logs.txt", "where the logs are, and recent failures", HINT + _failures(recent)


def from_directory(folder: Path) -> Iterator[Part]:
    """The report of a node that may have stopped, from its directory."""
    if not _journal(folder).is_file() and not (folder / "identity.json").is_file():
        raise ConfigError(f"{folder} is not a data directory: it has neither journal.jsonl nor identity.json")
    yield "files.json", "names, sizes and ages of its files", _listing(folder)
    yield _tail(folder)
    rows = map(json_object, tail(_journal(folder), MOST))
    started = [row for row in rows if row.get("event") == "started" and "settings" in row]
    if started:
        yield "settings.json", "the settings of its last start, secrets hidden", started[-1]["settings"]
    yield "versions.json", "the versions of this machine", {"here": environment()}
    yield "logs.txt", "where the logs are", HINT + "(ask the running node: pfl-node bugreport HOST:PORT)\n"


def pack(path: Path, parts: Iterable[Part]) -> Iterator[tuple[str, int, str]]:
    """Write the archive, readable only by this user; yields name, size and description of each file."""
    texts = [(name, about, _text(value)) for name, about, value in parts]
    folder = path.name.removesuffix(".gz").removesuffix(".tar")
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
            for name, _, text in texts:
                entry = tarfile.TarInfo(f"{folder}/{name}")
                entry.size, entry.mtime, entry.mode = len(text), int(time.time()), 0o600
                archive.addfile(entry, io.BytesIO(text))
    except FileExistsError as error:
        raise ConfigError(f"{path} exists; choose another name with --out") from error
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror or error}") from error
    for name, about, text in texts:
        yield name, len(text), about


def _text(value: Any) -> bytes:
    return (value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def _lines(rows: Iterable[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _failures(events: Iterable[Mapping[str, Any]]) -> str:
    return _lines(e for e in events if e["kind"] in FAILURE_KINDS) or "nothing\n"


def _journal(folder: Path) -> Path:
    return folder / "journal.jsonl"


def _tail(folder: Path) -> Part:
    last = list(tail(_journal(folder), MOST))[-LINES:]
    text = b"\n".join([*last, b""]).decode("utf-8", "replace")
    return "journal.jsonl", f"the last {len(last)} lines of its journal", text


def _listing(folder: Path) -> list[dict[str, Any]]:
    files = sorted((p for p in folder.iterdir() if p.is_file()), key=lambda p: p.name)
    found, now = [(p.name, p.stat()) for p in files], time.time()
    return [{"name": name, "bytes": s.st_size, "age_seconds": round(now - s.st_mtime)} for name, s in found]
