"""Asks the gRPC health service at HOST:PORT whether it serves; exit code 0: it does, 1: it does not.

`python -I -S healthy.py [HOST:PORT] [--wait SECONDS] [--tls CERTIFICATE KEY]`. With --wait it asks again until the
service serves or the time is over. Speaks the few frames of HTTP/2 that one call needs
by itself: importing grpc for it would cost ten times the CPU, in every container, all day long.
"""

import socket
import sys
import time

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS, GOAWAY = 0, 1, 4, 7
END_STREAM, END_HEADERS = 1, 4
PATH, CONTENT, TE = b"/grpc.health.v1.Health/Check", b"application/grpc", b"trailers"
STATES = {0: "unknown", 1: "serving", 2: "not serving", 3: "unknown service"}
SECONDS = 4.0
PAUSE = 1.0  # seconds between two questions of one check


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def text(value: bytes) -> bytes:
    """Of a header: its length and itself, uncompressed."""
    return bytes((len(value),)) + value


def question(authority: bytes, *, tls: bool) -> bytes:
    """The whole call. 0x83: POST; 0x86, 0x87: http, https; then path, authority, content-type and te."""
    head = b"\x83" + (b"\x87" if tls else b"\x86") + b"\x04" + text(PATH) + b"\x01" + text(authority)
    head += b"\x0f\x10" + text(CONTENT) + b"\x00" + text(b"te") + text(TE)
    call = frame(HEADERS, END_HEADERS, 1, head) + frame(DATA, END_STREAM, 1, b"\0\0\0\0\0")
    return PREFACE + frame(SETTINGS, 0, 0, b"") + call


def exactly(line: socket.socket, n: int) -> bytes:
    found = b""
    while len(found) < n:
        more = line.recv(n - len(found))
        if not more:
            raise ConnectionError("the connection was closed")
        found += more
    return found


def answer(line: socket.socket) -> int:
    """The state that the service tells: the only field of the only message of the stream."""
    message = b""
    while True:
        head = exactly(line, 9)
        size, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
        payload = exactly(line, size)
        if kind == GOAWAY:
            raise ConnectionError("the connection was refused")
        if kind == DATA:
            message += payload
        if len(message) >= 5 and len(message) >= 5 + int.from_bytes(message[1:5], "big"):
            return message[6] if len(message) > 6 else 0
        if kind in (DATA, HEADERS) and flags & END_STREAM:
            raise ConnectionError("there is no health service")


def ask(address: str, pair: tuple[str, str] | None = None) -> int:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), SECONDS) as line:
        if pair:
            line = wrapped(line, *pair)
        line.sendall(question(address.encode(), tls=bool(pair)))
        return answer(line)


def wrapped(line: socket.socket, certificate: str, key: str) -> socket.socket:
    """As the node itself. Whom it asks on its own machine it need not check."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(certificate, key)
    context.set_alpn_protocols(["h2"])
    return context.wrap_socket(line)


def main(words: list[str]) -> int:
    address = words[0] if words and not words[0].startswith("--") else "127.0.0.1:7946"
    pair = (words[-2], words[-1]) if "--tls" in words else None
    wait = float(words[words.index("--wait") + 1]) if "--wait" in words else 0.0
    end = time.monotonic() + wait
    while True:
        serves, text = check(address, pair)
        if serves or time.monotonic() + PAUSE > end:
            break
        time.sleep(PAUSE)
    print(f"{address}: {text}")
    return int(not serves)


def check(address: str, pair: tuple[str, str] | None) -> tuple[bool, str]:
    """Whether it serves, and the state or the error in words."""
    try:
        state = ask(address, pair)
    except (OSError, ValueError) as error:
        return False, str(error)
    return state == 1, STATES.get(state, "unknown")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
