"""The network: the only package that knows gRPC, besides membership's service."""

import os

# gRPC's core writes to stderr by itself, for example when a peer goes away. It reads this when it is imported.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
