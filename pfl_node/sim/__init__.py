"""The same policies on a virtual clock and an in-memory network: one seed decides everything."""

from pfl_node.sim.simulate import simulate

__all__ = ["simulate"]
