"""Checks the models of peers before they are used.

`outliers` compares norm, distance and direction on arrival; `gate` validates on own data what is about to be
averaged; `reputation` turns offences into penalties and quarantine; `guard` combines them for one node.
"""
