"""Identity and trust: keys, certificates, lists of ids, and the caller as authenticated by TLS. No gRPC.

A node's identity is a P-256 key; its id is a hash of the public key. Only `x509_builder` and `ca`, which create
keys and certificates, and `identity_keys`, which signs and verifies, import `cryptography`.
"""
