"""Opens TCP connections, directly or through an HTTP proxy."""

from __future__ import annotations

import asyncio
import socket
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from pfl_node.address import is_loopback, join_address, parse_address
from pfl_node.errors import ConfigError
from pfl_node.wire.http_connect import ConnectRefused, ConnectRequest, ask

PROXY_PORT = 8080
AUTHENTICATION_REQUIRED = 407
KEEPALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}  # seconds, seconds, times


@dataclass(frozen=True, slots=True)
class Proxy:
    address: str  # HOST:PORT
    authorization: str = ""  # the value of Proxy-Authorization
    bypass: Callable[[str], bool] = is_loopback  # hosts that are dialled directly


def read_proxy(url: str, credentials: Path | None = None, *, what: str = "network.proxy") -> Proxy:
    """Raises ConfigError. The file has one line, `USER:PASSWORD`."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme != "http" or not parts.hostname or parts.path not in ("", "/") or parts.query:
        raise ConfigError(f"{what} {_without_password(url)!r} must be http://HOST:PORT")
    if parts.password is not None or parts.username is not None:
        raise ConfigError(f"{what} must not contain a password: write USER:PASSWORD into a file and name it in "
                          "network.proxy_credentials")  # fmt: skip
    try:
        address = join_address(parts.hostname, parts.port or PROXY_PORT)
    except ValueError as error:
        raise ConfigError(f"{what} {url!r}: the port must be a number up to 65535") from error
    parse_address(address, what=what)
    return Proxy(address, _basic(_one_line(credentials)) if credentials else "")


def proxy_of_environment(credentials: Path | None = None) -> Proxy | None:
    """The proxy of https_proxy or http_proxy; hosts in no_proxy are dialled directly."""
    from urllib.request import getproxies_environment, proxy_bypass_environment  # type: ignore[attr-defined]

    found = getproxies_environment()
    url = found.get("https") or found.get("http")
    if not url:
        return None
    parts = urlsplit(url if "://" in url else f"http://{url}")
    plain = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    proxy = read_proxy(plain, credentials, what="the proxy of the environment")
    inline = f"{parts.username}:{parts.password or ''}" if parts.username and not credentials else ""
    return Proxy(
        proxy.address,
        _basic(inline) if inline else proxy.authorization,
        lambda host: is_loopback(host) or bool(proxy_bypass_environment(host, found)),
    )


def _one_line(file: Path) -> str:
    try:
        text = file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"network.proxy_credentials {str(file)!r} cannot be read: {why}") from error
    if ":" not in text or "\n" in text:
        raise ConfigError(f"network.proxy_credentials {str(file)!r} must have one line, USER:PASSWORD")
    return text


def _basic(user_and_password: str) -> str:
    return f"Basic {b64encode(user_and_password.encode()).decode()}"


def _without_password(url: str) -> str:
    scheme, separator, rest = url.rpartition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"


class Connector:
    def __init__(self, proxy: Proxy | None = None) -> None:
        self.proxy = proxy

    def direct(self, address: str) -> bool:
        """Is the address dialled without the proxy?"""
        return self.proxy is None or self.proxy.bypass(parse_address(address)[0])

    async def connect(self, address: str) -> socket.socket:
        """A connected socket that does not block. Raises OSError."""
        if self.proxy is None or self.direct(address):
            return await open_socket(address)
        try:
            connection = await open_socket(self.proxy.address)
        except OSError as error:
            text = f"no connection to the proxy {self.proxy.address}; check network.proxy"
            raise ConnectRefused(0, text) from error
        try:
            await ask(connection, ConnectRequest(address, self.proxy.authorization))
        except ConnectRefused as refused:
            connection.close()
            raise ConnectRefused(0, _explained(self.proxy, address, refused)) from refused
        except BaseException:
            connection.close()
            raise
        return connection


async def open_socket(address: str) -> socket.socket:
    """A direct TCP connection. Raises OSError."""
    host, port = parse_address(address)
    loop = asyncio.get_running_loop()
    failure: OSError | None = None
    for family, kind, protocol, _, place in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        connection = socket.socket(family, kind, protocol)
        try:
            connection.setblocking(False)
            await loop.sock_connect(connection, place)
            keep_alive(connection)
        except OSError as error:
            connection.close()
            failure = error
        except BaseException:
            connection.close()
            raise
        else:
            return connection
    raise failure or OSError(f"{host} has no address")


def keep_alive(connection: socket.socket) -> None:
    """Send small packets at once, and notice a connection whose other end has vanished."""
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _explained(proxy: Proxy, address: str, refused: ConnectRefused) -> str:
    hint = "; set network.proxy_credentials" if refused.status == AUTHENTICATION_REQUIRED else ""
    return f"the proxy {proxy.address} did not connect to {address}: {refused}{hint}"
