"""`python -m tests.networks.capture FILE`: all frames that pass the host's interfaces, one after the other."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

ALL_PROTOCOLS = 3


def main(file: Path) -> None:
    with (
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(ALL_PROTOCOLS)) as raw,
        file.open("wb") as out,
    ):
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)
        out.write(b"")
        out.flush()
        print("capturing", flush=True)
        while True:
            out.write(raw.recv(1 << 16))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
