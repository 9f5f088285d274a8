"""Many nodes on one machine: worker processes host them, and all traffic between them is real gRPC."""

from pfl_node.swarm.run import run_swarm

__all__ = ["run_swarm"]
