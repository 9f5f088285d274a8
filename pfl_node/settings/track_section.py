"""The settings of experiment trackers (`tracking/`)."""

from __future__ import annotations

from pathlib import Path

from pydantic import PositiveInt

from pfl_node.settings.section import Section


class TrackSettings(Section):
    """Where the figures of each round go besides the journal. A tracker that fails costs one warning, no round."""

    tensorboard: Path | None = None
    """Directory for the event files of TensorBoard, in RUN/NODE; needs `pip install 'pfl-node[tensorboard]'`."""
    mlflow: str | None = None
    """Tracking URI of MLflow; needs `pip install 'pfl-node[mlflow]'`."""
    wandb: str | None = None
    """Project of Weights & Biases; needs `pip install 'pfl-node[wandb]'`."""
    wandb_offline: bool = False
    """Write W&B's runs to ./wandb only; `wandb sync` uploads them later."""
    call: str | None = None
    """`file.py:function` or `package.module:function`, called with a `RoundReport` after every round."""
    nodes: PositiveInt = 16
    """In a simulation or a swarm, track the first nodes, at most this many."""
