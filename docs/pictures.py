"""Takes the pictures of README.md from real runs, with a headless Chromium (Debian: apt-get install chromium).

python docs/pictures.py [demo] [page]        writes docs/pictures/demo.png and docs/pictures/page.png
"""

from __future__ import annotations

import os
import pty
import signal
import socket
import subprocess
import sys
import tempfile
import time
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from tests.e2e.browser import Browser, browsing, chromium

PICTURES = Path(__file__).resolve().parent / "pictures"
COLUMNS = 100
NODES = 12
ROUNDS = 300  # of the swarm behind the page: more than are needed for the picture
PAGE = """<!doctype html><meta charset="utf-8"><style>
body {{ margin: 0; background: #0c0c0c; }}
pre {{ margin: 0; padding: 14px 18px; display: inline-block; color: #d9d9d9; font: 13px/1.35 monospace; }}
</style><pre>{code}</pre>"""


def demo(browser: Browser, folder: Path) -> None:
    """The end of `pfl-node demo`, as a terminal shows it."""
    html = folder / "demo.html"
    html.write_text(PAGE.format(code=coloured(report(in_terminal(program(), "demo", "--no-live")))))
    browser.resize(900, 600)
    browser.open(html.as_uri())
    width, height = browser.until("(b => b && [b.offsetWidth, b.offsetHeight])(document.querySelector('pre'))")
    browser.resize(width, height)
    browser.picture(PICTURES / "demo.png", whole=False)


def report(output: str) -> str:
    """The command, and the output from its last headline on, without the hints for what to do next."""
    lines = output.replace("\r", "").splitlines()
    first = max(number for number, line in enumerate(lines) if " nodes, " in line and " rounds, " in line)
    last = next((number for number, line in enumerate(lines) if line.startswith("next:")), len(lines))
    return "\n".join(["$ pfl-node demo", *lines[first:last]]).rstrip()


def coloured(output: str) -> str:
    """Terminal output as HTML."""
    console = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True)
    console.print(Text.from_ansi(output), soft_wrap=True)
    return console.export_html(theme=MONOKAI, inline_styles=True, code_format="{code}")


def page(browser: Browser, folder: Path) -> None:
    """The live page of a node whose swarm has found its clusters."""
    port = free_port()
    words = ["swarm", "-n", str(NODES), "--rounds", str(ROUNDS), "--policy", "pens", "--http", f"127.0.0.1:{port}"]
    knobs = ["policy.n_sampled=6", "policy.m=2", "policy.T=20", "policy.n_peers=3", "policy.delta=0.12"]
    settings = [word for knob in [*knobs, "policy.quiet=1"] for word in ("--set", knob)]
    swarm = subprocess.Popen([program(), *words, *settings, "--no-live"], cwd=folder, stdout=subprocess.DEVNULL)
    try:
        until_open(port, swarm)
        browser.resize(1200, 772)
        browser.prefer("light")
        browser.open(f"http://127.0.0.1:{port}/#/swarm")
        browser.until(f"document.querySelectorAll('.graph .node').length === {NODES}")
        browser.until("document.querySelectorAll('.clusters li').length === 2")
        time.sleep(20)  # let the graph settle
        browser.picture(PICTURES / "page.png", whole=False)
    finally:
        swarm.send_signal(signal.SIGINT)
        swarm.wait()


def in_terminal(*words: str) -> str:
    """All that a command prints when its stdout is a terminal."""
    main, side = pty.openpty()
    environment = os.environ | {"COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=side, env=environment)
    os.close(side)
    output = b""
    try:
        while chunk := os.read(main, 1 << 16):
            output += chunk
    except OSError:  # EIO: the other end of the terminal is closed
        pass
    if code := process.wait():
        raise SystemExit(f"{' '.join(words)} ended with exit code {code}")
    return output.decode()


def program() -> str:
    return str(Path(sys.executable).with_name("pfl-node"))


def free_port() -> int:
    """Node i serves its page at this port + i. Ports above 32767 may be taken by any connection at any moment."""
    return next(port for port in range(8100, 32000, NODES) if all(map(is_free, range(port, port + NODES))))


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def until_open(port: int, server: subprocess.Popen[bytes]) -> None:
    while is_free(port):
        if server.poll() is not None:
            raise SystemExit("the swarm ended before its page could be opened")
        time.sleep(0.2)


def main(words: list[str]) -> int:
    if chromium() is None:
        print("no chromium found (Debian: apt-get install chromium)", file=sys.stderr)
        return 2
    takes = {"demo": demo, "page": page}
    if unknown := [word for word in words if word not in takes]:
        print(f"unknown picture {unknown[0]!r}: there are demo and page", file=sys.stderr)
        return 2
    PICTURES.mkdir(exist_ok=True)
    for name in words or takes:
        with tempfile.TemporaryDirectory() as folder, browsing(Path(folder) / "profile") as browser:
            takes[name](browser, Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
