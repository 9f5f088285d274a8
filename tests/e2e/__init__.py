"""Real processes, real gRPC, real data."""
