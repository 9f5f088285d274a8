"""Peer-to-peer personalized federated learning. Importing this package loads nothing else.

The modules directly in this package are the shared vocabulary: values and pure functions without I/O, which
every package below may import. `steps` is the interface between a policy and its node; `model`, `predictions`
and `types` are the values that travel; `aggregate` combines models; `errors` has the exception tree.
"""

import os

# Read by gRPC when it is imported. Its own resolver queries a name server before it reads /etc/hosts.
os.environ.setdefault("GRPC_DNS_RESOLVER", "native")

__version__ = "0.1.0"
