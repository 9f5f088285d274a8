"""Workarounds for the behaviour of grpcio 1.85, one per module.

Each module names the behaviour and the upstream issue, so that it can be deleted once the issue is fixed.
"""
