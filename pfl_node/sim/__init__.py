"""The daemon's node in virtual time and in memory: one seed determines everything.

`event_loop` is an asyncio loop whose clock jumps to the next timer; `network` delivers messages with delay, loss
and partitions; `failure_detector` replaces SWIM; `faults` describes what goes wrong and when; `attacks/` turns
nodes malicious by wrapping their policy's steps; `simulate` runs a simulation from its settings and returns a
summary; `segments` makes long runs resumable.
"""

from pfl_node.sim.simulate import simulate

__all__ = ["simulate"]
