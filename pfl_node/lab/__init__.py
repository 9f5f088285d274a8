"""The lab: a paper's experiment with one command, its table and its pictures."""
