"""Figures, as ratios inside one run: the machines are noisy. Each script prints a table and the command beside it."""
