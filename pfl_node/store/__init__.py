"""A node's files: identity, checkpoints, journal, model, privacy ledger. Nothing is pickled."""
