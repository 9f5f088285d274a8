"""Shipped to policy authors: the policy contract and fault schedules.

`contract/` runs a policy by hand and in small swarms with faults (`pfl-node policies NAME --check`).
`schedules/` runs it with random faults and checks invariants at every step (`pfl-node chaos`). Nothing in a
daemon imports this package.
"""
