"""Who is who: keys, certificates, lists of ids, and what TLS has proved. Knows no gRPC and no settings.

A node's identity is a P-256 key; its id is a hash of the public key. Only what makes keys and certificates imports
`cryptography`; a running node needs it not.
"""
