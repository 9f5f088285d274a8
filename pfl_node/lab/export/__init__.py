"""A result for other programs: tidy tables, LaTeX, figures for a paper, and paired tests."""
