"""The operator's view of a node: the page, Prometheus metrics, events, logs, bug reports.

`observer` collects events and history of one node; `prometheus` exports its metrics; `swarm_view` queries other
nodes while the page or the command line is in use; `web/` serves the page. Nothing here changes what a node does.
"""
