"""Nonsense for a node that trains: every RPC, the UDP port, what lies below gRPC. `python -m tests.fuzz --help`"""
