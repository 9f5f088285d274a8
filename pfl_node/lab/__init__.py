"""Experiments: runs them, compares their results with those of the papers, and writes reports."""
