"""Figures as ratios inside one run, because machines are noisy. Each prints a table and its own command."""
