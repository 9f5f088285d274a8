"""Cells of an experiment as swarms of real nodes on this machine."""
