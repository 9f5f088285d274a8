"""Peer-to-peer personalized federated learning. Importing this package loads nothing else.

The Python API (`Node`, `simulate`, `swarm`, `load`) is loaded on first use from the packages that implement it;
`__init__.pyi` has its types.
The modules directly in this package are the shared vocabulary: values and pure functions without I/O, which
every package below may import. `steps` is the interface between a policy and its node; `model`, `predictions`
and `types` are the values that travel; `aggregate` combines models; `errors` has the exception tree.
"""

import os
from importlib import import_module
from typing import Any

# Read by gRPC when it is imported. Its own resolver queries a name server before it reads /etc/hosts.
os.environ.setdefault("GRPC_DNS_RESOLVER", "native")

__version__ = "0.1.0"
__all__ = ["Node", "RoundReport", "RunResult", "load", "simulate", "swarm"]

_HOMES = {
    "Node": "pfl_node.daemon.embedded_node",
    "RoundReport": "pfl_node.types",
    "RunResult": "pfl_node.sim.run_result",
    "load": "pfl_node.learning.personal_model",
    "simulate": "pfl_node.sim.run_simulation",
    "swarm": "pfl_node.swarm.run_swarm",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
