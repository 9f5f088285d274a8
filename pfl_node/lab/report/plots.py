"""The plots there are, by the names that specs use. What each shows is said here, once; how it is drawn is
`drawing.py`'s business."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Plot:
    title: str
    says: str  # one or two sentences under the title


PLOTS: dict[str, Plot] = {
    "accuracy": Plot(
        "Accuracy per cluster over rounds",
        "Mean accuracy of a cluster's nodes, each on the test data of its own cluster. A line is the mean over "
        "the seeds, its band reaches from the lowest seed to the highest.",
    ),
    "accuracy_over_bytes": Plot(
        "Accuracy over bytes",
        "The same accuracy against what all nodes together had sent by then. Runs whose nodes send nothing are "
        "left out.",
    ),
    "who_from_whom": Plot(
        "Who got from whom",
        "How many models a node (row) got from a node (column) with the first seed, the nodes sorted by cluster; "
        "white lines part the clusters. Bright blocks on the diagonal are nodes that learn within their own "
        "cluster.",
    ),
    "settlement": Plot(
        "Which heads the nodes settle on",
        "How many nodes of a cluster chose each head, round by round, with the first seed. A settled cluster has "
        "one colour, and another one than the other clusters; a head has the same colour everywhere. Before the "
        "heads part there is nothing to choose.",
    ),
    "fairness": Plot(
        "Fairness",
        "How differently the clusters are treated by their final models: demographic parity and equalized odds "
        "are 0 when all are treated alike; fair accuracy rewards high and equal accuracies. A bar is the mean "
        "over the seeds, a dot is one seed, a diamond the paper's figure.",
    ),
    "precision_recall": Plot(
        "Precision and recall",
        "Of the neighbours that nodes chose, the share of their own cluster (precision); of their own cluster, "
        "the share that they chose (recall); a bar is the mean over the seeds, a dot is one seed, a diamond the "
        "paper's figure. Over rounds: of the models that nodes merged, the share that came from their own "
        "cluster; runs that do not tell what they merge are left out.",
    ),
    "sweep": Plot(
        "Over the points of the sweep",
        "Each measure at every point. A line is the mean over the seeds, its band reaches from the lowest seed to "
        "the highest; hollow markers are the paper's figures.",
    ),
}
