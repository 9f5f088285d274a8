"""Builds the images and hands to the builds what pip of this machine knows: `docker/build.py [node] [bootstrap]`.

The PIP_* variables of the environment go along as build arguments. Folders of packages on this machine (pip's
find-links) are served to the build over HTTP, on Docker's own bridge and only while it runs. Nothing of that stays
in an image. TORCH_BUILD and PFL_TAG are read from the environment, as Compose does.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ("bootstrap", "node")
PORT = 18790  # of the first folder; the same every time, or Docker's cache would take it for another build
PASSED_ON = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST")


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@contextmanager
def served(folder: Path, host: str, port: int) -> Iterator[str]:
    server = ThreadingHTTPServer((host, port), partial(Quiet, directory=str(folder)))
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://{host}:{port}/"
    finally:
        server.shutdown()
        server.server_close()


def said(*command: str) -> str:
    """What a command prints; nothing where it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def places() -> list[str]:
    """Where pip looks for packages besides its index."""
    configured = said(sys.executable, "-m", "pip", "config", "get", "global.find-links")
    return list(dict.fromkeys((os.environ.get("PIP_FIND_LINKS") or configured).split()))


def bridge() -> str:
    """The address of this machine that a build can reach; nothing where the engine is elsewhere."""
    form = '{{index .Options "com.docker.network.bridge.name"}}'
    device = said("docker", "network", "inspect", "bridge", "--format", form)
    words = said("ip", "-4", "-o", "addr", "show", "dev", device).split() if device else []
    return words[words.index("inet") + 1].partition("/")[0] if "inet" in words else ""


def build(image: str, args: dict[str, str]) -> int:
    tag = f"pfl-{image}:{os.environ.get('PFL_TAG') or 'dev'}"
    command = ["docker", "build", "--file", f"docker/{image}.Dockerfile", "--tag", tag]
    for name, value in args.items():
        command += ["--build-arg", f"{name}={value}"]
    began = time.monotonic()
    code = subprocess.run([*command, "."], cwd=ROOT, check=False).returncode
    if code == 0:
        size = int(said("docker", "image", "inspect", "--format", "{{.Size}}", tag) or 0)
        print(f"{tag}: {size / 1e6:.0f} MB, built in {time.monotonic() - began:.0f} s", flush=True)
    return code


def main(names: list[str]) -> int:
    if unknown := [name for name in names if name not in IMAGES]:
        print(f"there is no image {unknown[0]!r}: {' or '.join(IMAGES)}", file=sys.stderr)
        return 2
    args = {name: os.environ[name] for name in PASSED_ON if os.environ.get(name)}
    host = bridge()
    with ExitStack() as stack:
        links = []
        for number, place in enumerate(places()):
            folder = Path(place.removeprefix("file://"))
            if not folder.is_dir():
                links.append(place)
            elif host:
                links.append(stack.enter_context(served(folder, host, PORT + number)))
                args["PIP_TRUSTED_HOST"] = f"{args.get('PIP_TRUSTED_HOST', '')} {host}".strip()
        if links:
            args["PIP_FIND_LINKS"] = " ".join(links)
        torch = {"TORCH_BUILD": os.environ.get("TORCH_BUILD") or "cpu"}
        return max(build(name, args | (torch if name == "node" else {})) for name in names or IMAGES)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
