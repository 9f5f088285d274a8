"""The titles and captions of the plots, by the names that specs use."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Plot:
    title: str
    caption: str


PLOTS: dict[str, Plot] = {
    "accuracy": Plot(
        "Accuracy per cluster over rounds",
        "Mean accuracy of a cluster's nodes, each on the test data of its own cluster. A line is the mean over "
        "the seeds, its band the range from the lowest seed to the highest.",
    ),
    "accuracy_over_bytes": Plot(
        "Accuracy over bytes",
        "The same accuracy over the data that all nodes together had sent. Runs without communication are "
        "omitted.",
    ),
    "who_from_whom": Plot(
        "Models received",
        "The models that a node (row) received from a node (column) with the first seed. Nodes are sorted by "
        "cluster; white lines separate the clusters. Bright blocks on the diagonal show nodes that learn within "
        "their own cluster.",
    ),
    "settlement": Plot(
        "Choice of heads",
        "The number of nodes of a cluster on each head by round, with the first seed. A head has the same colour "
        "in all clusters. A settled cluster has one colour, different from those of other clusters. During the "
        "warm-up there is one head.",
    ),
    "fair_accuracy": Plot(
        "Fair accuracy over rounds",
        "Fair accuracy of the clusters: two thirds for the mean of their accuracies, one third for how little "
        "the best and the worst differ. A line is the mean over the seeds, its band the range from the lowest "
        "seed to the highest.",
    ),
    "head_losses": Plot(
        "Loss of each head",
        "The loss of every head on the training data of a cluster's nodes, before they train it, with the first "
        "seed. In a settled run each cluster has one head with the lowest loss, a different one.",
    ),
    "head_map": Plot(
        "Final heads",
        "How many nodes of a cluster (row) ended with each head (column), with the first seed. In a settled run "
        "every row has one entry, in a column of its own.",
    ),
    "fairness": Plot(
        "Fairness",
        "Differences between clusters with their final models. Demographic parity and equalized odds are 0 if all "
        "clusters are treated equally; fair accuracy rewards high and equal accuracies. A bar is the mean over "
        "the seeds, a dot one seed, a diamond the paper's figure.",
    ),
    "precision_recall": Plot(
        "Precision and recall",
        "The share of a node's chosen neighbours that are in its own cluster (precision), and the share of its "
        "cluster that it chose (recall). A bar is the mean over the seeds, a dot one seed, a diamond the paper's "
        "figure. Over rounds: the share of merged models that came from the own cluster; runs that do not record "
        "what they merge are omitted.",
    ),
    "sweep": Plot(
        "Sweep",
        "Each measure at every point. A line is the mean over the seeds, its band the range from the lowest seed "
        "to the highest; hollow markers are the paper's figures.",
    ),
}
