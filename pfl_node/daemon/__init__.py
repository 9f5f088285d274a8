"""The daemon: node, wire, membership, store and ops assembled into one process.

`process` runs a node in the foreground until its rounds are done or a signal arrives; `preflight` checks the
settings before that; `tls_setup` prepares TLS; `advertise` finds the address that others dial.
"""
