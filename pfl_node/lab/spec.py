"""Experiments as TOML: the shipped ones and a user's own. A mistake is one line that says where it is.

Knows how a spec is written and what it means at a scale; runs nothing.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError

from pfl_node.config import check_names, load_settings
from pfl_node.errors import ConfigError, PflError, nearest
from pfl_node.lab.experiment import Cell, Claim, Experiment, Figure, Scale
from pfl_node.lab.measures import MEASURES, from_paper
from pfl_node.settings import Settings

Tree = dict[str, Any]
SHIPPED = files("pfl_node.lab") / "specs"
SECTIONS = ("policy", "task", "train", "aggregate", "eval", "round", "start", "wire", "serve", "store")


class Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Size(Strict):
    """How much is run at a scale."""

    nodes: PositiveInt
    rounds: PositiveInt
    seeds: PositiveInt = 1
    settings: Tree = Field(default_factory=dict)


class Sweep(Strict):
    """The same runs at several values of one setting."""

    setting: str  # a dotted key
    values: list[Any] = Field(min_length=1)
    label: str = "{}"
    quick: list[Any] | None = None  # the values at the quick scale; None: all


class Row(Strict):
    """One run of the experiment: a row of its table. A figure is a number, or one for each value of the sweep."""

    label: str
    settings: Tree = Field(default_factory=dict)
    quick: Tree = Field(default_factory=dict)  # settings at the quick scale only
    nodes: PositiveInt | None = None
    rounds: PositiveInt | None = None
    figures: dict[str, float | list[float | None]] = Field(default_factory=dict)


class Order(Strict):
    """A claim; `by` is in the unit that the paper prints, such as points of per cent."""

    metric: str
    higher: str
    lower: str
    by: float = 0.0
    point: str | None = None


class Spec(Strict):
    """A whole file."""

    title: str
    paper: str
    about: str = ""
    clusters: list[str] = Field(default_factory=list)
    metrics: list[str] = Field(min_length=1)
    plots: list[str] = Field(default_factory=list)
    target: float | None = Field(None, gt=0, lt=1)
    settings: Tree = Field(default_factory=dict)
    paper_scale: Size
    quick_scale: Size
    sweep: Sweep | None = None
    run: list[Row] = Field(min_length=1)
    claim: list[Order] = Field(default_factory=list)


# -- finding and reading ---------------------------------------------------------------------------------------


def shipped() -> list[str]:
    """The names of the experiments that come along."""
    return sorted(entry.name.removesuffix(".toml") for entry in SHIPPED.iterdir() if entry.name.endswith(".toml"))


def read(name: str) -> tuple[str, str]:
    """A shipped one by name, or a file of the user's own; the name and the text."""
    if name in shipped():
        return name, (SHIPPED / f"{name}.toml").read_text(encoding="utf-8")
    path = Path(name)
    if path.suffix != ".toml":
        raise ConfigError(f"there is no experiment {name!r}; {nearest(name, shipped())} (or a FILE.toml)")
    try:
        return path.stem, path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error


def parse(name: str, text: str) -> Spec:
    try:
        spec = Spec.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"experiment {name} is not valid TOML: {error}") from error
    except ValidationError as error:
        raise ConfigError(f"experiment {name}: {_complaint(error)}") from None
    _check_words(name, spec)
    return spec


@dataclass(frozen=True, slots=True)
class Wishes:
    """What wins over the spec, for all runs: settings by dotted key, and KEY=VALUE as on a command line."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    sets: Sequence[str] = ()


def load(
    name: str, scale: Scale = "quick", *, seeds: int | None = None, wishes: Wishes | None = None
) -> Experiment:
    """An experiment at a scale."""
    name, text = read(name)
    spec = parse(name, text)
    size = spec.quick_scale if scale == "quick" else spec.paper_scale
    numbers = tuple(range(seeds or size.seeds))
    return Experiment(
        name=name,
        title=spec.title,
        paper=spec.paper,
        about=spec.about.strip(),
        scale=scale,
        seeds=numbers,
        cells=tuple(_cells(name, spec, scale, numbers, wishes or Wishes())),
        metrics=tuple(spec.metrics),
        target=spec.target,
        plots=tuple(spec.plots),
        figures=tuple(_figures(spec, scale)),
        claims=tuple(_claims(spec)),
        clusters=dict(enumerate(spec.clusters)),
        text=text,
    )


# -- what it means ---------------------------------------------------------------------------------------------


def _cells(name: str, spec: Spec, scale: Scale, seeds: tuple[int, ...], wishes: Wishes) -> Iterator[Cell]:
    size = spec.quick_scale if scale == "quick" else spec.paper_scale
    for row in spec.run:
        for point, value in _points(spec, scale):
            flat = _flat(spec.settings) | _flat(size.settings) | _flat(row.settings)
            flat |= _flat(row.quick) if scale == "quick" else {}
            flat |= {} if spec.sweep is None else {spec.sweep.setting: value}
            flat |= {"rounds": (scale == "paper" and row.rounds) or size.rounds, **wishes.settings}
            nodes = (scale == "paper" and row.nodes) or size.nodes
            for seed in seeds:
                settings = _settings(f"experiment {name}, {row.label}", {**flat, "seed": seed}, wishes.sets)
                place = "/".join(filter(None, (slug(row.label), slug(point), f"seed-{seed}")))
                yield Cell(row.label, point, seed, nodes, settings, place)


def _settings(where: str, flat: Mapping[str, Any], sets: Sequence[str]) -> Settings:
    try:
        settings = load_settings(overrides=flat, sets=sets)
        check_names(settings)
    except PflError as error:
        raise ConfigError(f"{where}: {error}") from None
    return settings


def _points(spec: Spec, scale: Scale) -> list[tuple[str, Any]]:
    sweep = spec.sweep
    if sweep is None:
        return [("", None)]
    values = sweep.quick if scale == "quick" and sweep.quick is not None else sweep.values
    return [(sweep.label.format(value), value) for value in values]


def _figures(spec: Spec, scale: Scale) -> Iterator[Figure]:
    """Those of the points that are run."""
    run = dict(_points(spec, scale))
    for row in spec.run:
        for metric, given in row.figures.items():
            values = given if isinstance(given, list) else [given]
            for (point, _), value in zip(_points(spec, "paper"), values, strict=True):
                if value is not None and point in run:
                    yield Figure(row.label, point, metric, from_paper(metric, value))


def _claims(spec: Spec) -> Iterator[Claim]:
    for claim in spec.claim:
        yield Claim(claim.metric, claim.higher, claim.lower, from_paper(claim.metric, claim.by), claim.point)


def _flat(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys; what a section holds is a value, a list or a table of the task's or policy's own."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if key in SECTIONS and isinstance(value, Mapping):
            flat |= {f"{key}.{leaf}": v for leaf, v in value.items()}
        else:
            flat[key] = value
    return flat


def slug(text: str) -> str:
    """A name for a folder."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")


# -- mistakes --------------------------------------------------------------------------------------------------


def _check_words(name: str, spec: Spec) -> None:
    labels = [row.label for row in spec.run]
    if len(set(map(slug, labels))) < len(labels):
        raise ConfigError(f"experiment {name}: two runs have the same label")
    points = len(spec.sweep.values) if spec.sweep else 1
    for row in spec.run:
        for metric, given in row.figures.items():
            _known(name, "metric", metric, MEASURES)
            if len(given if isinstance(given, list) else [given]) != points:
                raise ConfigError(f"experiment {name}, {row.label}: {metric} needs {points} figures, one a point")
    for metric in (*spec.metrics, *(claim.metric for claim in spec.claim)):
        _known(name, "metric", metric, MEASURES)
    for claim in spec.claim:
        for label in (claim.higher, claim.lower):
            _known(name, "run", label, labels)


def _known(name: str, what: str, word: str, known: Any) -> None:
    if word not in known:
        raise ConfigError(f"experiment {name}: there is no {what} {word!r}; {nearest(word, list(known))}")


def _complaint(error: ValidationError) -> str:
    row = error.errors(include_url=False, include_context=False)[0]
    place = ".".join(str(part) for part in row["loc"])
    said = "is not a key here" if row["type"] == "extra_forbidden" else row["msg"]
    return f"{place}: {said[:1].lower()}{said[1:]}"
