"""Attacks on real nodes. Each test runs one and records its figure; `make test-attacks` prints the table."""
