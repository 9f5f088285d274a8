"""Read settings: TOML file < environment < flags < --set; write them as TOML. An error is one line that names its
source.

Imports neither torch nor grpc.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pfl_node import plugin
from pfl_node.errors import ConfigError
from pfl_node.settings import Settings
from pfl_node.settings.hints import nearest_key, or_section, or_setting
from pfl_node.settings.redact import HIDDEN, is_secret, shown
from pfl_node.settings.schema import FLAG, LIST, NAMED, TEXT, allowed, dotted, is_known, keys, sections
from pfl_node.settings.toml import toml, toml_key

PREFIX = "PFL_"
OURS_BUT_NOT_SETTINGS = frozenset({"PFL_CONFIG", "PFL_DATA", "PFL_DEBUG", "PFL_FAILPOINTS"})
# Kubernetes adds the addresses of every service to the environment of every pod.
SERVICE_LINK = re.compile(r"^PFL_\w+_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP)(_\w+)?)?)$")


@dataclass(frozen=True, slots=True)
class Given:
    """A value and a description of its source, such as "in exp.toml"."""

    value: Any
    where: str


Layer = dict[str, Given]  # by dotted key
KnobNames = Callable[[str], Iterable[str]]  # of the policies that policy.name names


def load_settings(
    *,
    config: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    sets: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    knobs: KnobNames = lambda _: (),
) -> Settings:
    """The effective settings. `overrides` are the flags by dotted key (None: not given), `sets` are KEY=VALUE.
    `knobs` lists the knobs of a policy, which `environ` may set."""
    environ = environ or {}
    config = config or (Path(environ["PFL_CONFIG"]) if environ.get("PFL_CONFIG") else None)
    file, environment = _file(config), _environment(environ)
    flags, last = _flags(overrides or {}), _sets(sets)
    merged: Layer = {}
    environment = _respelled(environment, by=(last, flags, environment, file), knobs=knobs)
    for layer in (file, environment, flags, last):
        _lay_over(merged, layer)
    return _build(merged)


def settings_of_call(call: str, **given: Any) -> Settings:
    """The settings of a Python call: sections are mappings, None means not given, task and policy may be objects.
    Errors name the `call`."""
    table = {key: value for key, value in given.items() if value is not None}
    for key in NAMED & table.keys():
        value = table[key]
        options = dict(value) if isinstance(value, Mapping) else {"name": value}
        name = options.get("name", sections()[key].model_fields["name"].default)
        table[key] = options | {"name": name if isinstance(name, str) else plugin.register(name)}
    where = f"in {call}"
    return _build({_known(key, where, value): Given(value, where) for key, value in dotted(table).items()})


def check_count(call: str, name: str, value: int) -> None:
    if value < 1:
        raise ConfigError(f"bad value {value} for {name!r} in {call}: must be a whole number above 0")


def _file(path: Path | None) -> Layer:
    if path is None:
        return {}
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise ConfigError(f"cannot read {path}: {e.strerror or e}") from e
    except ValueError as e:  # TOMLDecodeError and UnicodeDecodeError
        raise ConfigError(f"{path} is not valid TOML: {e}") from e
    where = f"in {path}"
    return {_known(key, where, value): Given(value, where) for key, value in dotted(table).items()}


def _environment(environ: Mapping[str, str]) -> Layer:
    layer: Layer = {}
    for variable, text in sorted(environ.items()):
        if not variable.startswith(PREFIX) or variable in OURS_BUT_NOT_SETTINGS or SERVICE_LINK.match(variable):
            continue
        where = f"in environment variable {variable}"
        key = _known(_key_of(variable), where)
        if text:  # an empty variable counts as unset
            layer[key] = Given(_value(key, text), where)
    return layer


def _key_of(variable: str) -> str:
    name = variable.removeprefix(PREFIX)
    section, _, leaf = name.partition("_")
    if section.lower() in sections() and not leaf.startswith("_") and is_known(f"{section}.{leaf}".lower()):
        raise ConfigError(f"unknown environment variable {variable}: did you mean {PREFIX}{section}__{leaf}?")
    return name.lower().replace("__", ".")


def _respelled(environment: Layer, by: Sequence[Layer], knobs: KnobNames) -> Layer:
    """Environment variables are upper case: give the policy's knobs the spelling that the chosen policy uses."""
    if not any(key.startswith("policy.") and key not in keys() for key in environment):
        return environment
    name = next((layer["policy.name"].value for layer in by if "policy.name" in layer), Settings().policy.name)
    spelling = {f"policy.{knob}".lower(): f"policy.{knob}" for knob in knobs(name)}
    return {spelling.get(key, key): given for key, given in environment.items()}


def _flags(overrides: Mapping[str, Any]) -> Layer:
    given = {key: value for key, value in overrides.items() if value is not None and value != []}
    return {_known(key, f"in {flag(key)}"): Given(value, f"in {flag(key)}") for key, value in given.items()}


def flag(key: str) -> str:
    for implied in (".name", ".listen", ".on", ".serve"):
        key = key.removesuffix(implied)
    return "--" + key.removeprefix("tls.").replace(".", "-").replace("_", "-")


def _sets(sets: Sequence[str]) -> Layer:
    layer: Layer = {}
    for text in sets:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"--set {text!r} must be KEY=VALUE, for example --set train.lr=0.1")
        key = _known(name.strip(), "in --set")
        layer[key] = Given(_value(key, value.strip()), "in --set")
    return layer


def _known(key: str, where: str, value: Any = None) -> str:
    """The full name of a key. The value, as far as it is known already, only improves the message."""
    if key in NAMED:
        return f"{key}.name"
    if is_known(key):
        return key
    if key in sections():
        raise ConfigError(f"{key!r} {where} is a section: write {key}.KEY = VALUE{or_setting(key)}")
    raise ConfigError(f"unknown setting {key!r} {where}: {nearest_key(key, table=isinstance(value, Mapping))}")


def _value(key: str, text: str) -> Any:
    """Parse a text of the environment or of --set as TOML; keep it as it is if the setting is a text."""
    value = _toml_value(text)
    wants = allowed(key) if key in keys() else ""
    if wants.startswith(LIST) and not isinstance(value, list | dict):  # `nan` is an item there, and 3 becomes [3]
        words = value if isinstance(value, str) else text
        return [part.strip() for part in words.split(",") if part.strip()]
    if isinstance(value, date | datetime | time) or (wants == TEXT and not isinstance(value, str)):
        return text
    return value


def _toml_value(text: str) -> Any:
    try:
        table = tomllib.loads(f"value = {text}")
    except ValueError:
        return text
    return table["value"] if len(table) == 1 else text


def _lay_over(merged: Layer, layer: Layer) -> None:
    """The upper layer wins; another policy or task drops the knobs that were meant for the previous one."""
    for section in NAMED:
        name = f"{section}.name"
        default = sections()[section].model_fields["name"].default
        if name in layer and layer[name].value != (merged[name].value if name in merged else default):
            for key in [k for k in merged if k.startswith(f"{section}.") and k not in keys()]:
                del merged[key]
    merged.update(layer)


def _build(merged: Layer) -> Settings:
    tree: dict[str, Any] = {}
    for key, given in merged.items():
        if isinstance(given.value, Mapping) and "." not in key:
            raise ConfigError(f"{key!r} {given.where} is a setting, not a section: {_must(key)}{or_section(key)}")
        if given.value == "" and key in keys():
            raise ConfigError(f"{key!r} {given.where} is empty: {_must(key)}")
        if isinstance(given.value, bool) and key in keys() and FLAG not in allowed(key):  # not 1
            raise ConfigError(_bad(key, given))
        section, _, leaf = key.rpartition(".")
        (tree.setdefault(section, {}) if section else tree)[leaf] = given.value
    try:
        return Settings.model_validate(tree)
    except ValidationError as e:
        at = [str(part) for part in e.errors(include_url=False)[0]["loc"]]
        key = next(k for k in (".".join(at[:2]), at[0]) if k in merged)
        raise ConfigError(_bad(key, merged[key])) from e


def _bad(key: str, given: Given) -> str:
    value = HIDDEN if is_secret(key) else repr(given.value)
    return f"bad value {value} for {key!r} {given.where}: {_must(key)}"


def _must(key: str) -> str:
    return f"must be {allowed(key)}"


def dump(settings: Settings) -> str:
    """The settings as TOML that `load_settings` reads back; unset and secret values are comments."""
    lines = [_line("", name, value) for name, value in settings if name not in sections()]
    for section in sections():
        lines += ["", f"[{section}]"]
        lines += [_line(f"{section}.", name, value) for name, value in getattr(settings, section)]
    return "\n".join(lines) + "\n"


def _line(prefix: str, name: str, value: Any) -> str:
    if value is None:
        return f"# {name} = {allowed(prefix + name)}" if prefix + name in keys() else f"# {name} ="
    if (seen := shown(name, value)) != value:
        return f"# {toml_key(name)} = {toml(seen)}  # a secret: set it in the environment or in a file"
    return f"{toml_key(name)} = {toml(value)}"
