"""Bounds what a node reveals about its samples.

`noisy_scores` answers score requests with exact Laplace noise and a budget per peer; `dp_account` counts the
steps of DP-SGD; `controls` combines both for one node. All of it is off by default; docs/privacy.md states
the guarantees.
"""
