"""How an experiment is written: the tables of its TOML, and what can be said against one without running it."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError

from pfl_node.errors import ConfigError, nearest
from pfl_node.lab.experiment import Scale
from pfl_node.lab.measures import MEASURES
from pfl_node.lab.report.plots import PLOTS

Tree = dict[str, Any]
UNKNOWN = "-"  # a figure that the paper does not have


class Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ScaleSize(Strict):
    """How much is run at a scale."""

    nodes: PositiveInt
    rounds: PositiveInt
    seeds: PositiveInt = 1
    target: float | None = Field(None, gt=0, lt=1)  # instead of the spec's
    settings: Tree = Field(default_factory=dict)


class Varied(Strict):
    """What differs from the rest: settings at both scales, and at one of them. Besides the tree of settings, which
    has `rounds`, they may say `nodes`."""

    label: str
    settings: Tree = Field(default_factory=dict)
    paper: Tree = Field(default_factory=dict)
    quick: Tree = Field(default_factory=dict)
    only: Scale | None = None  # it is run at one scale only

    def at(self, scale: Scale) -> Tree:
        return self.paper if scale == "paper" else self.quick


class SweepPoint(Varied):
    """Where all runs are done once more, with something changed."""


class SpecRow(Varied):
    """One run of the experiment: a row of its table. A figure is a number, or one for each point of the paper."""

    figures: dict[str, float | list[float | Literal["-"]]] = Field(default_factory=dict)


class Sweep(Strict):
    """Short for points that differ in one setting."""

    setting: str  # a dotted key
    values: list[Any] = Field(min_length=1)
    label: str = "{}"
    quick: list[Any] | None = None  # which of them at the quick scale; None: all


class PolicyOrder(Strict):
    """A claim; `by` is in the unit that the paper prints, such as points of per cent."""

    metric: str
    higher: str
    lower: str
    by: float = 0.0
    point: str | None = None
    only: Scale | None = None


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
    paper_scale: ScaleSize
    quick_scale: ScaleSize
    sweep: Sweep | None = None
    point: list[SweepPoint] = Field(default_factory=list)
    run: list[SpecRow] = Field(min_length=1)
    claim: list[PolicyOrder] = Field(default_factory=list)

    def size(self, scale: Scale) -> ScaleSize:
        return self.paper_scale if scale == "paper" else self.quick_scale

    def points(self) -> list[SweepPoint]:
        """Of both scales; one without a label where nothing is varied."""
        if self.sweep is None:
            return list(self.point) or [SweepPoint(label="")]
        sweep = self.sweep
        quick = sweep.values if sweep.quick is None else sweep.quick
        return [
            SweepPoint(
                label=sweep.label.format(value),
                settings={sweep.setting: value},
                only=None if value in quick else "paper",
            )
            for value in sweep.values
        ]


def parse(name: str, text: str) -> Spec:
    """The file as it stands; a mistake is one line that says where it is."""
    try:
        spec = Spec.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"experiment {name} is not valid TOML: {error}") from error
    except ValidationError as error:
        raise ConfigError(f"experiment {name}: {_complaint(error)}") from None
    try:
        _check_points(spec)
        _check_runs(spec)
        _check_words(spec)
    except ConfigError as error:
        raise ConfigError(f"experiment {name}: {error}") from None
    return spec


def given(value: float | list[Any]) -> list[Any]:
    """The figures of a metric, point by point."""
    return value if isinstance(value, list) else [value]


# -- mistakes --------------------------------------------------------------------------------------------------


def _check_points(spec: Spec) -> None:
    sweep = spec.sweep
    if sweep and spec.point:
        raise ConfigError("it has both a sweep and points: write one of them")
    if sweep and (strange := [v for v in sweep.quick or () if v not in sweep.values]):
        raise ConfigError(f"sweep.quick: {strange[0]!r} is none of the values {sweep.values}")
    if sweep and len(sweep.values) > 1 and "{}" not in sweep.label:
        raise ConfigError(f"sweep.label = {sweep.label!r} has no {{}}, where the value stands")
    _check_labels("points", (point.label for point in spec.points()))


def _check_runs(spec: Spec) -> None:
    _check_labels("runs", (row.label for row in spec.run))
    points = sum(point.only != "quick" for point in spec.points())
    for row in spec.run:
        for metric, value in row.figures.items():
            _known("metric", metric, MEASURES)
            if (n := len(given(value))) != points:
                raise ConfigError(
                    f"{row.label}: the figures of {metric} are {n}, and the points of the paper {points}"
                )


def _check_words(spec: Spec) -> None:
    labels, points = [row.label for row in spec.run], [point.label for point in spec.points()]
    for metric in (*spec.metrics, *(claim.metric for claim in spec.claim)):
        _known("metric", metric, MEASURES)
    for plot in spec.plots:
        _known("plot", plot, PLOTS)
    for claim in spec.claim:
        for label in (claim.higher, claim.lower):
            _known("run", label, labels)
        if claim.point is not None:
            _known("point", claim.point, points)


def _check_labels(what: str, labels: Iterable[str]) -> None:
    """A folder has the name of its label."""
    seen: dict[str, str] = {}
    for label in labels:
        if label and not slug(label):
            raise ConfigError(f"the label {label!r} has no letter or digit that a folder could be named after")
        if (name := slug(label)) in seen:
            raise ConfigError(f"two {what} have the same label: {seen[name]!r} and {label!r}")
        seen[name] = label


def _known(what: str, word: str, known: Collection[str]) -> None:
    if word not in known:
        raise ConfigError(f"there is no {what} {word!r}; {nearest(word, list(known))}")


def slug(text: str) -> str:
    """A name for a folder."""
    kept = "".join(c if c.isascii() and (c.isalnum() or c == ".") else " " for c in text.lower())
    return "-".join(kept.split()).strip(".")


def _complaint(error: ValidationError) -> str:
    rows = error.errors(include_url=False, include_context=False)
    # a mistyped key is also one that is missing: what was typed says more
    row = next((row for row in rows if row["type"] == "extra_forbidden"), rows[0])
    at = [part for part in row["loc"] if part != "-"]
    place = ".".join(str(part) for part in at)
    if row["type"] == "extra_forbidden":
        return f"{place} is not a key here; {nearest(str(at[-1]), _siblings(at))}"
    said = row["msg"]
    return f"{place}: {said[:1].lower()}{said[1:]}"


def _siblings(at: list[Any]) -> list[str]:
    """The keys of the table in which that one stands."""
    tables: Mapping[str, type[Strict]] = {
        "paper_scale": ScaleSize,
        "quick_scale": ScaleSize,
        "sweep": Sweep,
        "point": SweepPoint,
        "run": SpecRow,
        "claim": PolicyOrder,
    }
    table = tables.get(str(at[0]), Spec) if len(at) > 1 else Spec
    return list(table.model_fields)
