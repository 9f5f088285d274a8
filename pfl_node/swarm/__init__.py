"""Many nodes on one machine: worker processes host them, and all traffic between them is real gRPC."""
