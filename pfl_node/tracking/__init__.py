"""Experiment trackers: the figures of each round go to TensorBoard, MLflow, Weights & Biases or a user's function.

The same in daemon, swarm and simulator, which pass on what their nodes' recorders write. `tracking` has the thread
that calls the trackers, so that a slow server delays no round; `trackers` has one class for each service.
"""
