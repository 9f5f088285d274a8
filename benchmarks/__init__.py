"""Benchmarks. They report ratios within one run, as machines are noisy, and print a table and their command."""
