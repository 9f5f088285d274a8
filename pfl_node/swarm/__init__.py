"""Many real nodes on one machine, connected by gRPC; and the demo.

`supervisor` starts worker processes and a seed; `swarm_worker` hosts some of the nodes in one event loop with
one trainer; `live_view` and `swarm_report` show progress and results.
"""
