"""Fail points: named places in the code where a test injects a failure, modelled on tikv's fail-rs.

    PFL_FAILPOINTS='seed=7;send.before=10%return;checkpoint.rename=3*off->panic'

An entry is `name=[P%][N*]action[(argument)]`; further terms follow after `->`, and the first one whose probability
and count apply is executed. Random numbers depend on `seed` and the name, so that fail points do not influence
each other. A fail point that is off costs one lookup in an empty table.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
import re
import signal
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from pfl_node.errors import ConfigError, nearest

VARIABLE = "PFL_FAILPOINTS"
ACTIONS = {
    "off": "nothing happens",
    "return": "the operation is skipped; the description of the fail point says what follows",
    "panic": "the process is killed by SIGKILL",
    "sleep(MS)": "wait MS milliseconds; on the event loop only the current call waits",
    "error(NAME)": "raise the operating system's error of that name, such as ENOSPC, EROFS or EIO",
    "pause": "stop the process (SIGSTOP) until it receives SIGCONT",
}
ARGUMENTS = {"sleep": "sleep(MS)", "error": "error(NAME)"}  # actions that need one
EVERYWHERE = frozenset({"off", "panic", "sleep", "pause"})


@dataclass(frozen=True, slots=True)
class FailPoint:
    """A description, and the actions that are possible."""

    about: str
    takes: frozenset[str] = EVERYWHERE


def _disk(about: str) -> FailPoint:
    return FailPoint(about, EVERYWHERE | {"error"})


def _lost(about: str, then: str) -> FailPoint:
    return FailPoint(f"{about}; return: {then}", EVERYWHERE | {"return"})


FILES = {
    "checkpoint": "a generation of the checkpoint",
    "model": "`model.safetensors` or `best.safetensors`",
    "identity": "`identity.json`",
    "settings": "`settings.toml`",
    "file": "any other file that is replaced atomically: results of the lab and of swarms",
}
STEPS = {
    "create": "before its temporary file is created",
    "write": "when half of it is written",
    "fsync": "after writing, before fsync",
    "rename": "before the rename",
    "sync": "after the rename, before fsync of the directory",
}
PLACES: dict[str, FailPoint] = {
    f"{file}.{step}": _disk(f"{what}: {when}") for file, what in FILES.items() for step, when in STEPS.items()
} | {
    "checkpoint.prune": _disk("before an old generation is removed"),
    "checkpoint.read": _disk("before a generation is read"),
    "checkpoint.aside": _disk("before an unusable generation is renamed"),
    "journal.write": FailPoint(
        "before a line is appended; return: only half of it is written", EVERYWHERE | {"error", "return"}
    ),
    "journal.fsync": _disk("before the fsync that precedes every checkpoint"),
    "journal.mend": _disk("before an incomplete last line is removed"),
    "send.before": _lost("before a model is sent", "it is not sent, as if the peer were gone"),
    "send.after": _lost("after a peer accepted a model", "the receipt is lost, as if the peer were gone"),
    "admit": _lost("after the header of a call (a sleep stops the whole node)", "the call is refused as `flood`"),
    "receive": _lost("after a model was received", "it is refused as `truncated`"),
    "merge": _lost("before models are averaged", "the node keeps its own"),
    "train": _lost("before a training", "the model is unchanged"),
    "join": FailPoint("before the node joins"),
    "leave": _lost("before the node announces that it leaves", "it leaves without announcement"),
}


@dataclass(slots=True)
class Term:
    """One possible action at a fail point."""

    action: str
    argument: str = ""
    chance: float = 1.0
    left: int | None = None  # executions left; None: unlimited


@dataclass(slots=True)
class Armed:
    """The actions of one fail point."""

    text: str
    terms: list[Term]
    rng: random.Random
    lock: threading.Lock = field(default_factory=threading.Lock)

    def draw(self) -> Term | None:
        with self.lock:
            for term in self.terms:
                if term.chance < 1 and self.rng.random() >= term.chance:
                    continue
                if term.left is None:
                    return term
                if term.left > 0:
                    term.left -= 1
                    return term
        return None


_armed: dict[str, Armed] | None = None  # None: the variable has not been read yet


def failpoint(name: str) -> bool:
    """True: skip the operation. May also raise an OSError, return late, or never return."""
    if not (_armed if _armed is not None else arm()):
        return False
    term = _drawn(name)
    if term and term.action == "sleep":
        time.sleep(float(term.argument) / 1000)
    return _done(name, term)


async def afailpoint(name: str) -> bool:
    """As `failpoint`, in a coroutine: a sleep delays only the caller."""
    if not (_armed if _armed is not None else arm()):
        return False
    term = _drawn(name)
    if term and term.action == "sleep":
        await asyncio.sleep(float(term.argument) / 1000)
    return _done(name, term)


def arm(text: str | None = None) -> Mapping[str, str]:
    """Activate the fail points of the text, or else of the environment, and no others. Returns them by name."""
    global _armed
    _armed = parse(os.environ.get(VARIABLE, "") if text is None else text)
    return {name: armed.text for name, armed in _armed.items()}


def parse(text: str) -> dict[str, Armed]:
    entries = [entry.strip() for entry in text.split(";") if entry.strip()]
    seed, found = "0", {}
    for entry in entries:
        name, equals, what = (part.strip() for part in entry.partition("="))
        if not equals or not what:
            raise ConfigError(f"{VARIABLE}: {entry!r} is not NAME=ACTION, such as checkpoint.rename=panic")
        if name == "seed":
            seed = what
        elif name not in PLACES:
            hint = nearest(name, PLACES)
            known = "" if hint.startswith("known") else f" known: {', '.join(sorted(PLACES))}"
            raise ConfigError(f"{VARIABLE}: unknown fail point {name!r}: {hint}{known}")
        elif name in found:
            raise ConfigError(f"{VARIABLE}: {name} is given twice; for a sequence write {name}=A->B")
        else:
            found[name] = what
    return {
        name: Armed(
            what, [_term(name, part.strip()) for part in what.split("->")], random.Random(f"{seed}/{name}")
        )
        for name, what in found.items()
    }


TERM = re.compile(
    r"(?:(?P<chance>\d+(?:\.\d+)?)%)?(?:(?P<count>\d+)\*)?(?P<action>[a-z]+)(?:\((?P<argument>[^()]*)\))?"
)


def _term(name: str, text: str) -> Term:
    where = f"{VARIABLE}: {name}={text}"
    match = TERM.fullmatch(text.strip())
    if not match or match["action"] not in {a.partition("(")[0] for a in ACTIONS}:
        raise ConfigError(f"{where}: unknown action; write [P%][N*] and one of {', '.join(ACTIONS)}")
    action, argument = match["action"], (match["argument"] or "").strip()
    if action not in PLACES[name].takes:
        raise ConfigError(f"{where}: this fail point supports {', '.join(sorted(PLACES[name].takes))}")
    if (action in ARGUMENTS) != bool(argument):
        raise ConfigError(f"{where}: write {ARGUMENTS.get(action, action)}")
    if action == "sleep" and not re.fullmatch(r"\d+(\.\d+)?", argument):
        raise ConfigError(f"{where}: {argument!r} is not a number of milliseconds")
    if action == "error" and not hasattr(errno, argument):
        raise ConfigError(f"{where}: {argument!r} is not the name of a system error, such as ENOSPC")
    chance = float(match["chance"] or 100) / 100
    if chance > 1:
        raise ConfigError(f"{where}: a probability is at most 100%")
    return Term(action, argument, chance, int(match["count"]) if match["count"] else None)


def _drawn(name: str) -> Term | None:
    assert name in PLACES, name
    armed = (_armed or {}).get(name)
    return armed.draw() if armed else None


def _done(name: str, term: Term | None) -> bool:
    """Every action except sleep."""
    match term.action if term else "off":
        case "panic":
            print(f"fail point {name}: panic", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        case "pause":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "error":
            assert term
            number = getattr(errno, term.argument)
            raise OSError(number, os.strerror(number))
        case "return":
            return True
    return False
