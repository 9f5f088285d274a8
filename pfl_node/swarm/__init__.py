"""Many real nodes on one machine, connected by gRPC; and the demo.

`supervisor` starts worker processes and a seed; `swarm_worker` hosts some of the nodes in one event loop with
one trainer; `live_view` and `swarm_report` show progress and results. `run_swarm` is for Python programs. Once
this package is imported, `from pfl_node import swarm` gives the package itself, so the package can be called.
"""

import sys
from types import ModuleType
from typing import Any


class _CallablePackage(ModuleType):
    def __call__(self, *arguments: Any, **options: Any) -> Any:
        from pfl_node.swarm.run_swarm import swarm

        return swarm(*arguments, **options)


sys.modules[__name__].__class__ = _CallablePackage
