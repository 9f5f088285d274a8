"""What an operator sees of a node: the page, Prometheus metrics, events, logs, bug reports.

`observer` collects events and history of one node; `prometheus` exports its metrics; `swarm_view` asks other
nodes while someone watches; `web/` serves the page. Nothing here changes what a node does.
"""
