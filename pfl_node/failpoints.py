"""Fail points: named places in the code at which a test lets something go wrong, in the spirit of tikv's fail-rs.

    PFL_FAILPOINTS='seed=7;send.before=10%return;checkpoint.rename=3*off->panic'

An entry is `name=[P%][N*]action[(argument)]`, more of them follow after `->`: the first one whose chance and count
hold is done. Chances are drawn by `seed` and the name, so that one place does not disturb another's. Off, which
is the rule, a place costs one look at an empty table.
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
    "return": "what was to be done is not done; what that means is said beside the name",
    "panic": "the process is killed by SIGKILL",
    "sleep(MS)": "so many milliseconds pass; in a place of the event loop only its own call waits",
    "error(NAME)": "the operating system's error of that name, as ENOSPC, EROFS or EIO",
    "pause": "the process stops (SIGSTOP) until it gets SIGCONT",
}
ARGUMENTS = {"sleep": "sleep(MS)", "error": "error(NAME)"}  # those that need one
EVERYWHERE = frozenset({"off", "panic", "sleep", "pause"})


@dataclass(frozen=True, slots=True)
class FailPoint:
    """Where it is, and what else than stopping can be done there."""

    about: str
    takes: frozenset[str] = EVERYWHERE


def _disk(about: str) -> FailPoint:
    return FailPoint(about, EVERYWHERE | {"error"})


def _lost(about: str, then: str) -> FailPoint:
    return FailPoint(f"{about}; return: {then}", EVERYWHERE | {"return"})


FILES = {
    "checkpoint": "a generation of the checkpoint",
    "model": "`model.safetensors`",
    "identity": "`identity.json`",
    "file": "any other file that is written whole: results of the lab and of swarms",
}
STEPS = {
    "create": "before its temporary file is made",
    "write": "half of it is written",
    "fsync": "written, before fsync",
    "rename": "before it gets its name",
    "sync": "it has its name, before fsync of the directory",
}
PLACES: dict[str, FailPoint] = {
    f"{file}.{step}": _disk(f"{what}: {when}") for file, what in FILES.items() for step, when in STEPS.items()
} | {
    "checkpoint.prune": _disk("before a generation that is too old is removed"),
    "checkpoint.read": _disk("before a generation is read"),
    "checkpoint.aside": _disk("before a generation that cannot be used is put aside"),
    "journal.write": FailPoint(
        "before a line is appended; return: the disk takes half of it", EVERYWHERE | {"error", "return"}
    ),
    "journal.fsync": _disk("before fsync, which comes before every checkpoint"),
    "journal.mend": _disk("before a line that a crash tore is cut off"),
    "send.before": _lost("before a model is sent", "it is not, as if the peer were gone"),
    "send.after": _lost("a model was sent and taken", "its receipt is lost, as if the peer were gone"),
    "admit": _lost("the header of a call is here (a sleep stops the whole node)", "it is refused as `flood`"),
    "receive": _lost("a model has come whole", "it is refused as `truncated`"),
    "merge": _lost("before models are put together", "the own one stays"),
    "train": _lost("before a training", "the model stays as it was"),
    "join": FailPoint("before the node becomes a member"),
    "leave": _lost("before the node says goodbye", "it goes without a word"),
}


@dataclass(slots=True)
class Term:
    """One thing that may happen at a place."""

    action: str
    argument: str = ""
    chance: float = 1.0
    left: int | None = None  # how often yet; None: for ever


@dataclass(slots=True)
class Armed:
    """What is to happen at one place."""

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


_armed: dict[str, Armed] | None = None  # None: the variable was not read yet


def failpoint(name: str) -> bool:
    """True: do not do what comes now. May also never return, return late, or raise an OSError."""
    if not (_armed if _armed is not None else arm()):
        return False
    term = _drawn(name)
    if term and term.action == "sleep":
        time.sleep(float(term.argument) / 1000)
    return _done(name, term)


async def afailpoint(name: str) -> bool:
    """As `failpoint`, in a coroutine: only the one who waits is late."""
    if not (_armed if _armed is not None else arm()):
        return False
    term = _drawn(name)
    if term and term.action == "sleep":
        await asyncio.sleep(float(term.argument) / 1000)
    return _done(name, term)


def arm(text: str | None = None) -> Mapping[str, str]:
    """Switch on what the text says, or else the environment; all else is off. What is on, by name."""
    global _armed
    _armed = parse(os.environ.get(VARIABLE, "") if text is None else text)
    return {name: armed.text for name, armed in _armed.items()}


def parse(text: str) -> dict[str, Armed]:
    """A mistake is a ConfigError of one line."""
    entries = [entry.strip() for entry in text.split(";") if entry.strip()]
    seed, found = "0", {}
    for entry in entries:
        name, equals, what = (part.strip() for part in entry.partition("="))
        if not equals or not what:
            raise ConfigError(f"{VARIABLE}: {entry!r} is not NAME=ACTION, as in checkpoint.rename=panic")
        if name == "seed":
            seed = what
        elif name not in PLACES:
            hint = nearest(name, PLACES)
            known = "" if hint.startswith("known") else f" known: {', '.join(sorted(PLACES))}"
            raise ConfigError(f"{VARIABLE}: there is no fail point {name!r}: {hint}{known}")
        elif name in found:
            raise ConfigError(f"{VARIABLE}: {name} is there twice; for one after the other write {name}=A->B")
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
        raise ConfigError(f"{where}: no such action; [P%][N*] and one of {', '.join(ACTIONS)}")
    action, argument = match["action"], (match["argument"] or "").strip()
    if action not in PLACES[name].takes:
        raise ConfigError(f"{where}: at this place there is {', '.join(sorted(PLACES[name].takes))}")
    if (action in ARGUMENTS) != bool(argument):
        raise ConfigError(f"{where}: write {ARGUMENTS.get(action, action)}")
    if action == "sleep" and not re.fullmatch(r"\d+(\.\d+)?", argument):
        raise ConfigError(f"{where}: {argument!r} is not a number of milliseconds")
    if action == "error" and not hasattr(errno, argument):
        raise ConfigError(f"{where}: {argument!r} is not the name of a system error, as ENOSPC is")
    chance = float(match["chance"] or 100) / 100
    if chance > 1:
        raise ConfigError(f"{where}: a chance is at most 100%")
    return Term(action, argument, chance, int(match["count"]) if match["count"] else None)


def _drawn(name: str) -> Term | None:
    assert name in PLACES, name
    armed = (_armed or {}).get(name)
    return armed.draw() if armed else None


def _done(name: str, term: Term | None) -> bool:
    """Everything but the sleep."""
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
