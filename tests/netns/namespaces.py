"""Into namespaces of one's own, and what is missing where there can be none. What dies there takes all with it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def flags() -> list[str]:
    """Of unshare. The lab's first process is number 1 of its namespace: when it ends, however it ends, the kernel
    ends all others and their networks."""
    words = ["unshare", "--net", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"]
    return words if os.geteuid() == 0 else [*words, "--user", "--map-root-user"]


def missing() -> str | None:
    """In words, what this machine lacks; None: nothing."""
    if sys.platform != "linux":
        return f"network namespaces are Linux's, this is {sys.platform}"
    if not shutil.which("unshare"):
        return "the command unshare is not there (Debian: util-linux)"
    if not os.path.exists("/dev/net/tun"):
        return "/dev/net/tun is not there: the kernel has no TUN, or the container does not show it"
    trial = [sys.executable, "-c", "from tests.netns.namespaces import trial; trial()"]
    done = subprocess.run([*flags(), *trial], capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        who = "root" if os.geteuid() == 0 else "no root"
        return f"namespaces with TUN devices are not allowed here ({who}): {said}"
    return None


def trial() -> None:
    """One host is made and thrown away."""
    from tests.netns.tun import new_namespace, plug, wake_loopback

    try:
        with new_namespace():
            wake_loopback()
            os.close(plug("eth0", "10.77.0.1"))
    except OSError as error:
        raise SystemExit(str(error)) from error


def netem() -> bool:
    """Has the kernel tc's netem? To be asked inside."""
    if not shutil.which("tc"):
        return False
    words = ["tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"]
    had = subprocess.run(words, capture_output=True, check=False).returncode == 0
    if had:
        subprocess.run(["tc", "qdisc", "del", "dev", "lo", "root"], capture_output=True, check=False)
    return had


def go_inside(module: str) -> None:
    """Returns only in the lab's own process. Elsewhere it becomes that process, or says what is missing."""
    if os.getpid() == 1:
        return
    if lack := missing():
        print(f"the lab cannot run: {lack}", file=sys.stderr)
        sys.exit(2)
    sys.stdout.flush()
    os.execvp("unshare", [*flags(), sys.executable, "-m", module, *sys.argv[1:]])
