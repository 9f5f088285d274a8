"""Where the runs of an experiment are executed: processes of this machine, or the workers of a Dask cluster."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

from pfl_node.errors import ConfigError, Unavailable
from pfl_node.sim.process_executor import ProcessExecutor
from pfl_node.sim.worker_process import cores

SCHEMES = {"dask": "tcp", "dask+tls": "tls"}  # keys of TLS come from Dask's own configuration
CONNECT = 10.0  # seconds


def address_of(url: str) -> str:
    """dask://HOST:PORT as Dask writes it."""
    try:
        parts = urlsplit(url)
        scheme, port = SCHEMES[parts.scheme], parts.port
    except (KeyError, ValueError):
        scheme, port, parts = "", None, urlsplit("")
    if not parts.hostname or not port or parts.path or parts.query:
        raise ConfigError(f"--executor {url}: it should be dask://HOST:PORT (or dask+tls://HOST:PORT)")
    return f"{scheme}://{parts.netloc}"


def check(url: str) -> None:
    address_of(url)
    if find_spec("distributed") is None:
        raise ConfigError("--executor dask://… needs Dask: pip install 'pfl-node[cluster]'")


@contextmanager
def executor(url: str | None, workers: int | None) -> Iterator[Executor]:
    """None: `workers` processes of this machine, one per core by default."""
    if url is None:
        with ProcessExecutor(workers or cores()) as local:
            yield local
        return
    with _client(address_of(url)) as client:
        yield client.get_executor(pure=False)  # equal orders are separate jobs


@contextmanager
def _client(address: str) -> Iterator[Any]:
    from distributed import Client

    try:
        client = Client(address, timeout=CONNECT, set_as_default=False)
    except (OSError, TimeoutError) as error:
        raise Unavailable(f"no Dask scheduler answers at {address}: start one with `dask scheduler`") from error
    with client:
        yield client
