"""Experiments: the papers' and your own, from a TOML spec to a report.

`spec_schema` and `spec` read a spec, `runner` runs it resumably in the simulator or on a swarm, `results_dir`
owns the folder of results; `report/` writes tables, plots and one HTML page; `result_comparison` sets two
results side by side; `audit/` attacks the privacy of nodes.
"""
