"""Experiments: the papers' and your own, from a TOML spec to a report.

`spec_schema`, `spec` and `sweeps` read a spec; `runner` submits its cells (`cell_job`) to an executor
(`executors`): processes of this machine or a Dask cluster, simulated or as a swarm; `results_dir` owns the folder
of results; `report/` writes tables, plots and one HTML page; `export/` writes them for other programs; `publish/`
makes docs/results.md from records; `result_comparison` sets two results side by side; `audit/` attacks the privacy
of nodes.
"""
