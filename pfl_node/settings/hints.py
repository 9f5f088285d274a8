"""The hint at the end of an error message about the name of a setting or section."""

from __future__ import annotations

from collections.abc import Iterable

from pfl_node.errors import most_similar, nearest
from pfl_node.settings import Settings
from pfl_node.settings.schema import keys, sections

SIMILAR = "did you mean"


def nearest_key(key: str, *, table: bool = False) -> str:
    """For an unknown key. A `table` can only be meant as a section: a setting of the same name is no hint."""
    if table and "." not in key:
        return nearest(key, sections())
    section, _, leaf = key.rpartition(".")
    elsewhere = [k for k in keys() if k.rpartition(".")[2] == leaf]
    if elsewhere and f"{key}s" not in keys():
        # With a section in the key, the one with the most similar name.
        return f"{SIMILAR} {(most_similar(key, elsewhere) or elsewhere[0])!r}?"
    if name := most_similar(key, [k for k in (*keys(), *sections()) if ("." in k) == ("." in key)]):
        return f"{SIMILAR} {name!r}?"
    return nearest(leaf, sections()[section].model_fields if section in sections() else Settings.model_fields)


def or_section(key: str) -> str:
    """For a setting that was written as a section, such as [rounds] for [round]."""
    return _or("the section [{}]", key, sections())


def or_setting(key: str) -> str:
    """For a section that was written as a setting, such as `round = 5` for `rounds = 5`."""
    return _or("the setting {!r}", key, [k for k in keys() if "." not in k])


def _or(meant: str, key: str, names: Iterable[str]) -> str:
    name = most_similar(key, names)
    return f"; {SIMILAR} {meant.format(name)}?" if name else ""
