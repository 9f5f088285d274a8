"""The network: gRPC client and server, TLS, and the encoding of models.

`codec`, `framing`, `encodings` and `vector_reader` are sans-io. `client` and `server` are the two ends of the Peer
service, `membership_client` and `membership_service` those of the Membership service; `endpoint` is the server
of both, `channels` the connection pool. `paths` and `relay` open connections through proxies and relays. `quirks`
isolates workarounds for gRPC.
"""

import os

# gRPC's core logs to stderr, for example when a peer disconnects. It reads this variable when it is imported.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
