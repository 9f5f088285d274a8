"""The types of the Python API. `__init__.py` loads it lazily and imports nothing: see the dependency rule."""

from pfl_node.daemon.embedded_node import Node as Node
from pfl_node.learning.personal_model import load as load
from pfl_node.sim.run_result import RunResult as RunResult
from pfl_node.sim.run_simulation import simulate as simulate
from pfl_node.swarm.run_swarm import swarm as swarm
from pfl_node.types import RoundReport as RoundReport

__version__: str
__all__: list[str]
_HOMES: dict[str, str]
