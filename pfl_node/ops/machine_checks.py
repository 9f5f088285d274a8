"""Checks of a node's own machine: certificate, key, disk, clock, version, pace, data, device.

The same functions serve a running node and `pfl-node doctor` before the first start.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from pfl_node import __version__
from pfl_node.node.clock import now
from pfl_node.ops.amounts import size, span
from pfl_node.ops.node_health import HealthCheck, Level, ok
from pfl_node.ops.transfer_totals import TransferTotals
from pfl_node.security.key_permissions import exposed_key

if TYPE_CHECKING:
    from pfl_node.ops.observed_node import ObservedNode
    from pfl_node.security.certificate import Certificate

DAYS_LEFT = 14  # days of validity below which a certificate should be renewed
DISK_LOW, DISK_FULL = 1 << 30, 100 << 20  # bytes
CLOCK_WRONG, CLOCK_BROKEN = 60.0, 3600.0  # seconds; a certificate is valid from an hour before it was issued
GIGABYTE = 1e9
BYTES_PER_DAY = 20 * GIGABYTE  # traffic above which the operator is warned
DAY = 86400.0
SETTLED = 60.0  # seconds of running before the traffic of a day can be estimated


def certificate_check(certificate: Certificate | None, moment: datetime | None = None) -> HealthCheck:
    if certificate is None:
        return ok("certificate", "not needed: TLS is off")
    left = (certificate.not_after - (moment or datetime.now(UTC))).total_seconds() / DAY
    until = f"valid until {certificate.not_after:%Y-%m-%d}"
    if left <= 0:
        return HealthCheck("certificate", Level.FAIL, f"expired, {until}", "issue a new one: pfl-node ca issue")
    if left < DAYS_LEFT:
        return HealthCheck(
            "certificate",
            Level.WARN,
            f"{until}, {left:.0f} days",
            "renew it: pfl-node ca issue for the same request",
        )
    return ok("certificate", f"{until}, {left:.0f} days")


def key_check(key: Path | None) -> HealthCheck:
    """`key`: the file with the node's private key; None: TLS is off."""
    if key is None:
        return ok("key", "not needed: TLS is off")
    if exposed := exposed_key(key):
        return HealthCheck("key", Level.WARN, exposed.text, exposed.remedy)
    return ok("key", "only this node can read its private key")


def disk_check(folder: Path, unwritten: Sequence[str] = (), *, running: bool = False) -> HealthCheck:
    """`folder` may not exist yet, unless its node is `running`."""
    if running and not folder.is_dir():
        text = f"{folder} does not exist any more"
        return HealthCheck("disk", Level.FAIL, text, "stop the node, put the directory back, and start the node")
    place = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if unwritten:
        text = f"could not write {', '.join(unwritten)} in {folder}"
        return HealthCheck("disk", Level.FAIL, text, "free some space or fix the permissions")
    if not os.access(place, os.W_OK | os.X_OK):
        text = f"{place} is not writable for this user"
        return HealthCheck("disk", Level.FAIL, text, "change its owner, or set data_dir")
    free = shutil.disk_usage(place).free
    text = f"{size(free)} free in {place}"
    if free < DISK_FULL:
        return HealthCheck("disk", Level.FAIL, text, "free some space: checkpoints will fail")
    if free < DISK_LOW:
        return HealthCheck("disk", Level.WARN, text, "free some space, or move the journal away")
    return ok("disk", text)


def clock_check(ahead: Sequence[float]) -> HealthCheck:
    """`ahead`: how many seconds the clocks of other members are ahead of this one's."""
    if not ahead:
        return HealthCheck("clock", Level.WARN, "not checked: no member has answered", "run chrony or timesyncd")
    off = -median(ahead)
    others = f"the median of {len(ahead)} members" if len(ahead) > 1 else "the member that was asked"
    text = f"{abs(off):.1f} s {'ahead of' if off > 0 else 'behind'} {others}"
    if abs(off) >= CLOCK_WRONG:
        level = Level.FAIL if abs(off) >= CLOCK_BROKEN else Level.WARN
        return HealthCheck(
            "clock", level, text, "run chrony or timesyncd here, or there: certificates depend on it"
        )
    return ok("clock", text)


def version_check(others: Mapping[str, str], mine: str = __version__) -> HealthCheck:
    """`others`: versions by name."""
    if not others:
        return ok("version", f"{mine}; that of no other node is known")
    if different := sorted(f"{name} has {version}" for name, version in others.items() if version != mine):
        text = f"{mine}, but {', '.join(different[:5])}"
        return HealthCheck("version", Level.WARN, text, "finish the upgrade: the same version at all sites")
    return ok("version", f"{mine}, as at {len(others)} {'other' if len(others) == 1 else 'others'}")


def traffic_check(per_day: float | None, every: str) -> HealthCheck:
    """`per_day`: bytes, both directions; None: not known."""
    if per_day is None:
        return ok("pace", every)
    text = f"{every}, {size(per_day)} of models a day"
    if per_day > BYTES_PER_DAY:
        return HealthCheck("pace", Level.WARN, text, "set round.every, for example 10m, at all sites")
    return ok("pace", text)


def data_check(samples: int | None) -> HealthCheck:
    if samples is None:
        return HealthCheck("data", Level.WAITING, "the task is not loaded yet")
    if not samples:
        return HealthCheck("data", Level.FAIL, "the task has no training samples", "check the task's folder")
    return ok("data", f"{samples:,} samples for training")


def device_check(name: str, *, loaded: bool = True) -> HealthCheck:
    """`loaded`: torch is imported completely."""
    if not loaded:
        return HealthCheck("device", Level.WAITING, f"{name}; torch is not loaded yet")
    if name == "cpu" and _has_gpu():
        return HealthCheck("device", Level.WARN, "cpu, although there is a GPU", "set device = auto to use it")
    return ok("device", f"{name}{'' if name != 'auto' else ': a GPU' if _has_gpu() else ': the CPU'}")


@cache
def _has_gpu() -> bool:
    torch = sys.modules.get("torch")
    return bool(torch and torch.cuda.is_available())


def machine_checks(node: ObservedNode) -> list[HealthCheck]:
    """The checks of a running node."""
    recorder = node.recorder
    return [
        certificate_check(node.tls.trust.credentials.certificate if node.tls else None),
        key_check(node.tls.trust.files.key if node.tls else None),
        disk_check(node.home.path, recorder.unwritten if recorder else (), running=True),
        clock_check([result.clock_ahead for result in node.monitor.results.values()]),
        _pace(node),
        data_check(recorder.learner.samples if recorder else None),
        device_check(node.settings.device, loaded=recorder is not None),
    ]


def _pace(node: ObservedNode) -> HealthCheck:
    observer, uptime, every = node.node_observer, now() - node.started, node.settings.round.every
    if not observer.rounds:
        return HealthCheck("pace", Level.WAITING, "no round is done yet")
    moved = TransferTotals.of(node)
    total = moved.sent + moved.received
    if every is not None:
        per_day = total / observer.rounds * DAY / every if total else None
        return traffic_check(per_day, f"a round every {span(every)}")
    took = f"a round every {span(observer.round_seconds / observer.rounds)}"
    return traffic_check(total / uptime * DAY if uptime >= SETTLED else None, took)
