"""The result of a run of many nodes in a Python program: tables, curves and models."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any

from pfl_node.errors import ConfigError
from pfl_node.sim.outcome import NodeRecord, Outcome

if TYPE_CHECKING:
    from pandas import DataFrame
    from torch import nn

COLUMNS = ("node", "cluster", "rounds", "accuracy", "loss", "MB sent")


class NodeModels(Mapping[str, "nn.Module"]):
    """The personal models by node, in evaluation mode. A module is built when it is asked for."""

    def __init__(self, ids: Iterable[str], build: Callable[[str], nn.Module]) -> None:
        self._built: dict[str, nn.Module | None] = dict.fromkeys(ids)
        self._build = build

    def __getitem__(self, node: str) -> nn.Module:
        module = self._built[node]
        if module is None:
            module = self._built[node] = self._build(node)
        return module

    def __iter__(self) -> Iterator[str]:
        return iter(self._built)

    def __len__(self) -> int:
        return len(self._built)


@dataclass(frozen=True)
class RunResult:
    """What `pfl_node.simulate` and `pfl_node.swarm` return. `print(result)` shows the table."""

    outcome: Outcome  # the records of the nodes, and measures over them
    rounds: Sequence[Mapping[str, Any]]  # a row for each node and round: node, round, time and the figures
    models: Mapping[str, nn.Module]

    @property
    def nodes(self) -> tuple[NodeRecord, ...]:
        return self.outcome.nodes

    @property
    def accuracy(self) -> float | None:
        """Mean test accuracy of the personal models; None: the task has no classes."""
        return self.outcome.accuracy

    @property
    def loss(self) -> float | None:
        return self.outcome.loss

    def table(self) -> str:
        """A row for each node at the end of the run, and one for their means."""
        o = self.outcome
        names = list(o.metrics)  # the task's own
        columns = [*COLUMNS[:-1], *names, COLUMNS[-1]]
        rows = [
            _row(n.id, n.cluster, n.rounds, n.accuracy, n.loss, _own(n.metrics, names), n.bytes_sent)
            for n in o.nodes
        ]
        sent = sum(n.bytes_sent for n in o.nodes) / max(1, len(o.nodes))
        rows.append(_row("mean", None, None, o.accuracy, o.loss, _own(o.metrics, names), sent))
        kept = [c for c in range(len(columns)) if any(row[c] for row in rows)]
        lines = [[columns[c] for c in kept], *([row[c] for c in kept] for row in rows)]
        wide = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join(
                cell.ljust(w) if c == 0 else cell.rjust(w)
                for c, (cell, w) in enumerate(zip(line, wide, strict=True))
            )
            for line in lines
        )

    def frame(self) -> DataFrame:
        """The rows of `rounds` as a pandas DataFrame."""
        try:
            from pandas import DataFrame
        except ImportError as error:
            raise ConfigError("frame() needs pandas: pip install pandas; `rounds` has the same rows") from error
        return DataFrame(list(self.rounds))

    def __str__(self) -> str:
        return self.table()


def _own(metrics: Mapping[str, float], names: Sequence[str]) -> list[str]:
    return [f"{metrics[name]:.4f}" if name in metrics else "" for name in names]


def _row(
    name: str,
    cluster: int | None,
    rounds: int | None,
    accuracy: float | None,
    loss: float | None,
    own: Sequence[str],
    sent: float,
) -> list[str]:
    known = accuracy is not None and isfinite(accuracy)
    return [
        name,
        "" if cluster is None else str(cluster),
        "" if rounds is None else str(rounds),
        f"{accuracy:.1%}" if known else "",
        "" if loss is None else f"{loss:.4f}",
        *own,
        f"{sent / 1e6:.2f}",
    ]
