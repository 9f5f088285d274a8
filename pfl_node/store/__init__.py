"""A node's data directory: identity, checkpoints, journal, model, privacy ledger.

Each file is either the old or the new version, whatever happens during a write (`atomic`). `checkpoints`
keeps two generations and verifies a checksum before it uses one; `policy_state` turns a policy's attributes
into JSON and vectors.
"""
